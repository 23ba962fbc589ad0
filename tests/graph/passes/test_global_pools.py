from __future__ import annotations

import onnx_ir as ir
import pytest

from onnxq.graph.note import Note
from onnxq.graph.passes.global_pools import global_pools
from onnxq.graph.shapes import infer_shapes
from tests.graph.helpers import apply, build, ops, random


def pooled(model: ir.Model) -> list[Note]:
    infer_shapes(model)
    notes = global_pools(model)
    infer_shapes(model)
    return notes


@pytest.mark.parametrize(("keepdims", "shape"), [(1, "[N, 6, 1, 1]"), (0, "[N, 6]")])
@pytest.mark.parametrize("axes", ["2, 3", "-1, -2"])
@pytest.mark.parametrize("opset", [17, 18])
def test_over_rows_and_columns(opset: int, axes: str, keepdims: int, shape: str) -> None:
    """Axes as an attribute or as an input, dropped or kept; the node and its output keep their names."""
    given = f"ReduceMean <axes = [{axes}], keepdims = {keepdims}> (x)"
    if opset >= 18:
        given = f"ReduceMean <keepdims = {keepdims}> (x, axes)"
    proto = build(f"g (float[N, 6, 5, 4] x) => (float{shape} y) {{ y = {given} }}", opset=opset)
    if opset >= 18:
        proto.graph.initializer.append(ir.to_proto(ir.tensor([int(a) for a in axes.split(",")], name="axes")))
    proto.graph.node[0].name = "mean"
    model, notes = apply(pooled, proto, {"x": random(3, 6, 5, 4)})
    assert ops(model) == (["GlobalAveragePool"] if keepdims else ["GlobalAveragePool", "Flatten"])
    assert model.graph[0].name == "mean"
    assert [note.message for note in notes] == ["1 means over all positions are GlobalAveragePool"]


def test_of_volumes() -> None:
    proto = build(
        "g (float[2, 3, 4, 5, 6] x) => (float[2, 3] y) { y = ReduceMean <axes = [2, 3, 4], keepdims = 0> (x) }"
    )
    model, _ = apply(pooled, proto, {"x": random(2, 3, 4, 5, 6)})
    assert ops(model) == ["GlobalAveragePool", "Flatten"]


@pytest.mark.parametrize(
    "text",
    [
        "(float[2, 3, 4, 5] x) => (float[2, 3, 1, 5] y) { y = ReduceMean <axes = [2]> (x) }",
        "(float[2, 3, 4, 5] x) => (float[2, 1, 1, 5] y) { y = ReduceMean <axes = [1, 2]> (x) }",
        "(float[2, 3, 4, 5] x) => (float[1, 1, 1, 1] y) { y = ReduceMean (x) }",
        "(float[2, 3, 4] x) => (float[2, 3, 1] y) { y = ReduceMean <axes = [2]> (x) }",
        "(float[2, 3, 4, 5] x) => (float[2, 3, 1, 1] y) { y = ReduceMax <axes = [2, 3]> (x) }",
        """(float[2, 3, 4, 5] x) => (float[2, 3, 4, 5] y) {
            mean = ReduceMean <axes = [2, 3]> (x)
            y = Sub (x, mean) }""",
        """(float[2, 3, 4, 5] x) => (float[2, 3, 1, 1] y) {
            square = Mul (x, x)
            y = ReduceMean <axes = [2, 3]> (square) }""",
    ],
)
def test_left(text: str) -> None:
    """Other axes, three axes, other reductions, and the parts of a normalization."""
    proto = build(f"g {text}")
    shape = [dim.dim_value for dim in proto.graph.input[0].type.tensor_type.shape.dim]
    model, notes = apply(pooled, proto, {"x": random(*shape)})
    assert not notes and "GlobalAveragePool" not in ops(model)


def test_doubles_stay() -> None:
    """onnxruntime has no GlobalAveragePool for them."""
    proto = build("g (double[2, 3, 4, 5] x) => (double[2, 3, 1, 1] y) { y = ReduceMean <axes = [2, 3]> (x) }")
    _, notes = apply(pooled, proto, {"x": random(2, 3, 4, 5).astype("float64")})
    assert not notes
