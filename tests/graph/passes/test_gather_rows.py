from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from onnxq.graph.note import Note
from onnxq.graph.passes.gather_rows import gather_rows
from onnxq.graph.shapes import infer_shapes
from tests.graph.helpers import apply, build, ops, random
from tests.models import i64

TABLE = random(5, 3, 4)


def change(model: ir.Model) -> list[Note]:
    return [*infer_shapes(model), *gather_rows(model)]


@pytest.mark.parametrize(
    ("text", "feed", "left"),
    [
        ("int64[n] i) => (float[n,3,4] y) { u = Unsqueeze(i, one) \n y = GatherND(w, u) }", [0, -1, 4, -5], ["Gather"]),
        (
            "int64[2,2] i) => (float[2,2,3,4] y) { u = Unsqueeze(i, last) \n y = GatherND(w, u) }",
            [[0, 3], [-2, 1]],
            None,
        ),
        (
            "int64[n] i) => (float[n,3,4] y, float[n,3,4] z) { u = Unsqueeze(i, one) \n y = GatherND(w, u) \n "
            "a = Abs(w) \n z = GatherND(a, u) }",
            [0, 2],
            ["Gather", "Abs", "Gather"],
        ),
        (
            "int64[n] i) => (float[3,4] y) { u = Unsqueeze(i, zero) \n y = GatherND(w, u) }",
            [2],
            ["Unsqueeze", "GatherND"],
        ),
        (
            "int64[5] i) => (float[5,4] y) { u = Unsqueeze(i, one) \n y = GatherND<batch_dims = 1>(w, u) }",
            [0, 1, 2, 1, 0],
            ["Unsqueeze", "GatherND"],
        ),
    ],
)
def test_whole_rows_are_picked_by_a_gather(text: str, feed: list[int], left: list[str] | None) -> None:
    proto = build(f"g ({text}", w=TABLE, zero=i64([0]), one=i64([1]), last=i64([-1]))
    model, notes = apply(change, proto, {"i": np.asarray(feed, np.int64)})
    assert ops(model) == (left or ["Gather"])
    assert any(note.pass_name == "gather_rows" for note in notes) == ("GatherND" not in ops(model))
