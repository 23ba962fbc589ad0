"""An Expand whose readers repeat elements by themselves is not there any more, and no number changes."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from onnxq.graph.note import Note
from onnxq.graph.passes.needless_expands import needless_expands
from onnxq.graph.passes.normalize import normalize
from onnxq.graph.shapes import infer_shapes
from onnxq.graph.traverse import all_nodes
from tests.graph.helpers import Feeds, apply, build, ops, random
from tests.models import f32, i64

FEEDS: Feeds = {"x": random(2, 3, 8)}


def change(model: ir.Model) -> list[Note]:
    return [*infer_shapes(model), *needless_expands(model)]


def length(last: str, dims: str = "2,3,8", more: str = "") -> onnx.ModelProto:
    """A vector's length, repeated for each of its elements."""
    text = f"""agraph (float[{dims}] x) => (float[{dims}] y{more}) {{
        l = ReduceL2 <axes = [-1]> (x)
        c = Clip (l, low)
        size = Shape (x)
        e = Expand (c, size)
        {last}
    }}"""
    return build(text, low=f32(1e-6), first=i64([0]), end=i64([8]), axis=i64([2]))


@pytest.mark.parametrize("dims", ["2,3,8", "n,3,8", "n,m,8"])
@pytest.mark.parametrize("last", ["y = Div (x, e)", "y = Sub (e, x)", "y = Max (x, e, x)"])
def test_a_vector_divided_by_its_length(dims: str, last: str) -> None:
    model, _ = apply(normalize, length(last, dims), FEEDS)
    assert "Expand" not in ops(model)


@pytest.mark.parametrize(
    "last",
    [
        "y = Neg (e)",
        "y = Add (e, e)",
        "y = Add (e, c)",
        "a = Concat <axis = -1> (x, e)\n y = Slice (a, first, end, axis)",
    ],
)
def test_one_that_is_needed_stays(last: str) -> None:
    model, _ = apply(change, length(last), FEEDS)
    assert ops(model).count("Expand") == 1


def test_an_output_stays_and_the_others_read_what_is_smaller() -> None:
    model, _ = apply(change, length("y = Div (x, e)", more=", float[2,3,8] e"), FEEDS)
    (division,) = [node for node in all_nodes(model) if node.op_type == "Div"]
    assert "Expand" in ops(model) and [value.name for value in division.inputs if value] == ["x", "c"]


def test_sizes_that_only_may_be_alike_are_not_taken_to_be() -> None:
    proto = build(
        "agraph (float[n,1] x, float[m,8] z, int64[2] s) => (float[a,b] y) { e = Expand (x, s) y = Mul (z, e) }"
    )
    feeds: Feeds = {"x": random(1, 1), "z": random(1, 8), "s": i64([5, 8])}
    model, _ = apply(change, proto, feeds)
    assert "Expand" in ops(model)
