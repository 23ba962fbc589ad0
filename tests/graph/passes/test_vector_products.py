from __future__ import annotations

import onnx_ir as ir
import pytest

from onnxq.graph.note import Note
from onnxq.graph.passes.vector_products import vector_products
from onnxq.graph.shapes import infer_shapes
from tests.graph.helpers import apply, build, ops, random


def widened(model: ir.Model) -> list[Note]:
    infer_shapes(model)
    notes = vector_products(model)
    infer_shapes(model)
    return notes


@pytest.mark.parametrize("opset", [13, 17])
def test_by_a_constant_and_by_what_is_computed(opset: int) -> None:
    text = """g (float[2, 12, 7] x) => (float[2, 7] y, float[2, 7] z) {
        t = Transpose <perm = [0, 2, 1]> (x)
        y = MatMul (t, w)
        v = Neg (w)
        z = MatMul (t, v) }"""
    proto = build(text, opset=opset, w=random(12))
    proto.graph.node[1].name = "product"
    model, notes = apply(widened, proto, {"x": random(2, 12, 7)})
    assert ops(model) == ["Transpose", "MatMul", "Squeeze", "Neg", "Unsqueeze", "MatMul", "Squeeze"]
    assert model.graph[1].name == "product"
    assert [note.message for note in notes] == ["2 products by vectors are by a column"]


@pytest.mark.parametrize(
    "text",
    [
        "(float[2, 7, 12] x) => (float[2, 7] y) { y = MatMul (x, w) }",
        "(float[12] x) => (float y) { t = Transpose (x) \n y = MatMul (t, w) }",
        "(float[12, 7] x) => (float[7] y) { t = Transpose (x) \n u = Transpose (t) \n y = MatMul (w, u) }",
        """(float[12, 7] x) => (float[7] y) {
            q = QuantizeLinear (w, s)
            d = DequantizeLinear (q, s)
            t = Transpose (x)
            y = MatMul (t, d) }""",
    ],
)
def test_left(text: str) -> None:
    """No Transpose, no matrix, the vector first, a vector that has its quantizer."""
    proto = build(f"g {text}", w=random(12), s=random() ** 2)
    shape = [dim.dim_value for dim in proto.graph.input[0].type.tensor_type.shape.dim]
    _, notes = apply(widened, proto, {"x": random(*shape)})
    assert not notes
