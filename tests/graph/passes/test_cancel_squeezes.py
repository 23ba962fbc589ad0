from __future__ import annotations

import onnx_ir as ir
import pytest

from onnxq.graph.note import Note
from onnxq.graph.passes.cancel_squeezes import cancel_squeezes
from onnxq.graph.shapes import infer_shapes
from tests.graph.helpers import apply, build, ops, random
from tests.models import i64


def change(model: ir.Model) -> list[Note]:
    return [*infer_shapes(model), *cancel_squeezes(model)]


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("float[2,4,1,5] y) { r = Relu(x) \n s = Squeeze(r, two) \n u = Unsqueeze(s, two) \n y = Abs(u) }", []),
        ("float[2,4,1,5] y) { r = Relu(x) \n s = Squeeze(r, two) \n u = Unsqueeze(s, last) \n y = Abs(u) }", []),
        ("float[2,4,1,5] y) { r = Relu(x) \n s = Unsqueeze(r, zero) \n u = Squeeze(s, zero) \n y = Abs(u) }", []),
        (
            "float[2,1,4,5] y) { r = Relu(x) \n s = Squeeze(r, two) \n u = Unsqueeze(s, one) \n y = Abs(u) }",
            ["Squeeze", "Unsqueeze"],
        ),
        (
            "float[2,4,1,5] y, float[2,4,5] s) { r = Relu(x) \n s = Squeeze(r, two) \n u = Unsqueeze(s, two) \n "
            "y = Abs(u) }",
            ["Squeeze"],
        ),
    ],
)
def test_pairs_that_undo_each_other(text: str, left: list[str]) -> None:
    axes = {"zero": i64([0]), "one": i64([1]), "two": i64([2]), "last": i64([-2])}
    model, _ = apply(change, build(f"g (float[2,4,1,5] x) => ({text}", **axes), {"x": random(2, 4, 1, 5)})
    assert ops(model) == ["Relu", *left, "Abs"]


def test_a_pair_that_makes_an_output_stays() -> None:
    text = "g (float[2,4,1,5] x) => (float[2,4,1,5] y) { s = Squeeze(x, two) \n y = Unsqueeze(s, two) }"
    assert ops(apply(change, build(text, two=i64([2])), {"x": random(2, 4, 1, 5)})[0]) == ["Squeeze", "Unsqueeze"]
