from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxq
from onnxq import Options
from onnxq.backends.qnn.narrow_rows import widen_rows
from onnxq.runtimes.child import missing
from onnxq.runtimes.qnn import RUNTIME
from tests.graph.helpers import apply
from tests.models import build, feeds_for

WHY = missing(RUNTIME)


def picking(sizes: tuple[int, ...], axis: int, indices: tuple[int, ...]) -> onnx.ModelProto:
    """A Gather of random rows, the last one among them."""
    rows = sizes[axis]
    which = np.random.default_rng(0).integers(0, rows, indices)
    which[..., -1] = rows - 1
    made = (*sizes[:axis], *indices, *sizes[axis + 1 :])
    return build(
        f"""(float{list(sizes)} x) => (float{list(made)} y) {{
            [picks] y = Gather <axis = {axis}> (x, i)
        }}""",
        i=which,
    )


@pytest.mark.parametrize(
    ("sizes", "axis", "indices"),
    [
        ((50, 16), 0, (32,)),
        ((3, 50, 8), 1, (40,)),
        ((2, 50, 4, 8), 1, (40,)),
        ((2, 3, 50, 32), 2, (4, 8)),
        ((2, 3, 50, 4), -2, (33,)),
    ],
)
def test_narrow_rows_are_picked_along_the_last_axis(
    sizes: tuple[int, ...], axis: int, indices: tuple[int, ...]
) -> None:
    model = picking(sizes, axis % len(sizes), indices)
    model.graph.node[0].attribute[0].i = axis
    changed, notes = apply(widen_rows, model, feeds_for(model)[0], tolerance=0)
    assert [node.op_type for node in changed.graph] == ["Transpose", "Gather", "Transpose"]
    gather = changed.graph[1]
    assert gather.name == "picks" and gather.attributes.get_int("axis", 0) == len(sizes) - 1
    assert len(notes) == 1


@pytest.mark.parametrize(
    ("sizes", "axis", "indices"),
    [((50, 16), 0, (31,)), ((3, 50, 12), 1, (40,)), ((3, 50, 64), 1, (40,)), ((3, 16, 50), 2, (40,))],
)
def test_what_is_right_stays(sizes: tuple[int, ...], axis: int, indices: tuple[int, ...]) -> None:
    model = picking(sizes, axis, indices)
    assert not apply(widen_rows, model, feeds_for(model)[0], tolerance=0)[1]


def test_a_table_stays() -> None:
    model = build("(int64[40] i) => (float[40, 16] y) { y = Gather (t, i) }", t=np.ones((50, 16), np.float32))
    assert not apply(widen_rows, model, {"i": np.arange(40)}, tolerance=0)[1]


@pytest.mark.runtime
@pytest.mark.skipif(WHY is not None, reason=f"no onnxruntime-qnn: {WHY}")
@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize(
    ("sizes", "axis", "indices"),
    [
        ((50, 16), 0, (64,)),
        ((50, 4), 0, (64,)),
        ((3, 50, 8), 1, (64,)),
        ((2, 3, 50, 32), 2, (64,)),
        ((2, 50, 16), 1, (8, 8)),
    ],
)
def test_the_emulator_picks_what_is_asked(
    sizes: tuple[int, ...], axis: int, indices: tuple[int, ...], bits: int, tmp_path: Path
) -> None:
    """In 8 or 16 bits two thirds of the numbers were those of other rows, or of the last row zeros."""
    model = picking(sizes, axis, indices)
    rng = np.random.default_rng(0)
    feeds = [{"x": rng.normal(size=sizes).astype(np.float32)} for _ in range(4)]
    options = Options(act_bits=bits)
    path = onnxq.quantize(model, feeds, backend="qnn", options=options, output=tmp_path / "m.onnx").files[0]
    agreement = onnxq.verify(path, feeds[:2], backend="qnn")
    assert not agreement.faults()
    assert agreement.lsb["y"] < 1.5
