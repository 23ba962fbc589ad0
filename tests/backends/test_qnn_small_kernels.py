from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxq
from onnxq import Options
from onnxq.backends.qnn.small_kernels import ungroup_small_kernels
from onnxq.runtimes.child import missing
from onnxq.runtimes.qnn import RUNTIME
from tests.graph.helpers import apply
from tests.models import build, feeds_for, normal

WHY = missing(RUNTIME)


def depthwise(channels: int, kernel: int, stride: int, pad: int = 0, size: int = 15) -> onnx.ModelProto:
    made = (size + 2 * pad - kernel) // stride + 1
    return build(
        f"""(float[1, {channels}, {size}, {size}] x) => (float[1, {channels}, {made}, {made}] y) {{
            r = Relu (x)
            y = Conv <group = {channels}, strides = [{stride}, {stride}], pads = [{pad}, {pad}, {pad}, {pad}]> (r, w, b)
        }}""",
        w=normal(channels, 1, kernel, kernel),
        b=normal(channels, seed=2),
    )


@pytest.mark.parametrize(("kernel", "pad", "size"), [(1, 0, 15), (1, 0, 16), (2, 0, 16), (2, 1, 15), (1, 1, 16)])
def test_a_plain_convolution_computes_the_same(kernel: int, pad: int, size: int) -> None:
    model = depthwise(36, kernel, 2, pad, size)
    changed, notes = apply(ungroup_small_kernels, model, feeds_for(model)[0], tolerance=1e-6)
    weight = next(node for node in changed.graph if node.op_type == "Conv").inputs[1]
    assert weight is not None and weight.shape is not None and tuple(weight.shape) == (36, 36, kernel, kernel)
    assert len(notes) == 1


@pytest.mark.parametrize(("channels", "kernel", "stride"), [(32, 1, 2), (36, 1, 1), (36, 3, 2), (36, 1, 3), (44, 1, 2)])
def test_what_is_right_stays(channels: int, kernel: int, stride: int) -> None:
    model = depthwise(channels, kernel, stride)
    assert not apply(ungroup_small_kernels, model, feeds_for(model)[0], tolerance=0)[1]


def test_a_model_given_keeps_its_scales(tmp_path: Path) -> None:
    model = depthwise(36, 1, 2)
    given = onnxq.quantize(model, feeds_for(model), options=Options(placement="all"), output=tmp_path / "given.onnx")
    made = onnxq.deploy(tmp_path / "given.onnx", backend="qnn")
    assert set(made.plan.quantized.values()) == set(given.plan.quantized.values()) == {"Conv"}
    (before,), (after,) = (
        [q.qparams[site.name].scale for site in q.plan.sites if site.role == "weight"] for q in (given, made)
    )
    np.testing.assert_array_equal(after, before)
    assert next(node for node in made.model.graph if node.op_type == "Conv").attributes.get_int("group", 0) == 1


@pytest.mark.runtime
@pytest.mark.skipif(WHY is not None, reason=f"no onnxruntime-qnn: {WHY}")
@pytest.mark.parametrize(("channels", "kernel"), [(4, 1), (36, 1), (36, 2), (68, 1)])
def test_the_emulator_computes_it_rightly(channels: int, kernel: int, tmp_path: Path) -> None:
    model = depthwise(channels, kernel, 2, size=16)
    rng = np.random.default_rng(0)
    feeds = [{"x": rng.normal(size=(1, channels, 16, 16)).astype(np.float32)} for _ in range(8)]
    path = onnxq.quantize(model, feeds, backend="qnn", output=tmp_path / "m.onnx").files[0]
    agreement = onnxq.verify(path, feeds[:2], backend="qnn")
    assert not agreement.faults()
    assert agreement.lsb["y"] < 2.5
