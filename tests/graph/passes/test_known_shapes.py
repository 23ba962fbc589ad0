"""What is picked from a shape becomes a constant where just these dimensions are known."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import onnxq
from onnxq.graph.files.load import load
from onnxq.graph.passes.constants import fold_constants
from onnxq.graph.passes.known_shapes import fold_shapes
from onnxq.graph.passes.normalize import normalize
from tests.contract import infer, sqnr
from tests.graph.helpers import ops
from tests.models import build, feeds_for, i64, normal


@pytest.mark.parametrize(
    ("picked", "numbers"),
    [
        ("d = Shape (x)  k = Gather (d, two)", [16]),
        ("d = Shape (x)  k = Gather (d, last)", [16]),
        ("d = Shape (x)  k = Gather (d, several)", [16, 8]),
        ("d = Shape (x)  k = Slice (d, one, end)", [8, 16]),
        ("d = Shape (x)  k = Slice (d, last, least, zero, last)", None),
        ("d = Shape (x)  k = Slice (d, last, zero, zero, last)", [16, 8]),
        ("d = Shape <start = 1> (x)  k = Gather (d, zero)", [8]),
        ("k = Shape <start = -1> (x)", [16]),
        ("k = Shape <start = 1, end = 2> (x)", [8]),
        ("k = Shape <end = 1> (x)", None),
        ("d = Shape (x)  k = Gather (d, zero)", None),
        ("d = Shape (x)  k = Slice (d, zero, end)", None),
        ("k = Size (x)", None),
    ],
)
def test_picked_dimensions(picked: str, numbers: list[int] | None) -> None:
    text = f"(float[N, 8, 16] x) => (float[N, 8, 16] y) {{ {picked}  f = Cast <to = 1> (k)  s = ReduceMax (f)"
    proto = build(
        text + "  y = Mul (x, s) }",
        two=i64([2]),
        last=i64([-1]),
        several=i64([2, 1]),
        zero=i64([0]),
        one=i64([1]),
        end=i64([9]),
        least=i64([-(2**63)]),
    )
    model = load(proto)
    normalize(model)
    if numbers is None:
        assert {"Shape", "Size"} & set(ops(model))
    else:
        assert ops(model) == ["Mul"]
    for batch in (1, 3):
        feeds = feeds_for(proto, N=batch)
        got, want = (infer(each, feeds, optimize=False)["y"] for each in (ir.to_proto(model), proto))
        np.testing.assert_array_equal(got, want)


def test_a_pick_beyond_the_end_is_left_to_the_runtime() -> None:
    text = "(float[N, 8] x) => (int64[1] y) { d = Shape (x)  k = Gather (d, far)  y = Neg (k) }"
    model = load(build(text, far=i64([2])))
    assert not fold_shapes(model)
    fold_constants(model)
    assert "Gather" in ops(model)


def test_a_slice_in_steps_of_zero_is_left_to_the_runtime() -> None:
    text = "(float[N, 8] x) => (int64[1] y) { d = Shape (x)  k = Slice (d, one, two, none, none)  y = Neg (k) }"
    model = load(build(text, one=i64([1]), two=i64([2]), none=i64([0])))
    assert not fold_shapes(model)


def test_a_scale_that_is_computed_from_a_width_is_folded_into_the_layer() -> None:
    """The factor of attention as exporters write it, width ** -0.5, with a free batch."""
    model = build(
        """(float[N, 8, 16] x) => (float[N, 8, 16] y) {
            h = MatMul (x, w)
            dims = Shape (h)
            width = Gather (dims, last)
            number = Cast <to = 1> (width)
            root = Sqrt (number)
            y = Div (h, root)
        }""",
        w=normal(16, 16),
        last=np.array(2),
    )
    result = onnxq.quantize(model, feeds_for(model, N=2), options=onnxq.Options(placement="all", effort="fast"))
    assert ops(result.model) == ["MatMul"]
    for batch in (1, 3):
        feeds = feeds_for(model, N=batch)
        want, got = (infer(each, feeds, optimize=False)["y"] for each in (model, ir.to_proto(result.rendered())))
        assert sqnr(want, got) > 30
