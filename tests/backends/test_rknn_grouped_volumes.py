from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxq
from onnxq.backends.rknn.grouped_volumes import ungroup_volumes
from onnxq.runtimes.child import missing
from onnxq.runtimes.rknn import RUNTIME
from tests.graph.helpers import apply
from tests.models import build, feeds_for, normal

WHY = missing(RUNTIME)


def grouped(read: int, made: int, groups: int, axes: int = 3) -> onnx.ModelProto:
    sizes = ", ".join(["8"] * axes)
    return build(
        f"""(float[1, {read}, {sizes}] x) => (float[1, {made}, {sizes}] y) {{
            y = Conv <group = {groups}, pads = {[1] * 2 * axes}> (x, w, b)
        }}""",
        w=normal(made, read // groups, *[3] * axes),
        b=normal(made, seed=2),
    )


@pytest.mark.parametrize(("read", "made", "groups"), [(8, 16, 8), (8, 8, 4), (8, 16, 4), (8, 4, 4)])
def test_a_plain_convolution_computes_the_same(read: int, made: int, groups: int) -> None:
    model = grouped(read, made, groups)
    changed, notes = apply(ungroup_volumes, model, feeds_for(model)[0], tolerance=1e-5)
    weight = changed.graph[0].inputs[1]
    assert weight is not None and weight.shape is not None and tuple(weight.shape) == (made, read, 3, 3, 3)
    assert len(notes) == 1


@pytest.mark.parametrize(("groups", "axes"), [(1, 3), (8, 3), (4, 2)])
def test_what_is_right_stays(groups: int, axes: int) -> None:
    model = grouped(8, 8, groups, axes)
    assert not apply(ungroup_volumes, model, feeds_for(model)[0], tolerance=0)[1]


@pytest.mark.runtime
@pytest.mark.skipif(WHY is not None, reason=f"no RKNN-Toolkit2: {WHY}")
@pytest.mark.parametrize(("read", "made", "groups"), [(8, 16, 8), (8, 8, 4), (8, 16, 4), (8, 4, 4)])
def test_the_simulator_computes_it_rightly(read: int, made: int, groups: int, tmp_path: Path) -> None:
    """The first was off by 98 steps, on the others it crashed."""
    model = grouped(read, made, groups)
    rng = np.random.default_rng(0)
    feeds = [{"x": rng.normal(size=(1, read, 8, 8, 8)).astype(np.float32)} for _ in range(4)]
    path = onnxq.quantize(model, feeds, backend="rknn", output=tmp_path / "m.onnx").files[0]
    agreement = onnxq.verify(path, feeds[:1], backend="rknn")
    assert not agreement.faults()
    assert agreement.lsb["y"] < 2.5
