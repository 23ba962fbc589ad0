"""Arithmetic in front of a float operator that amplifies its noise stays float, and nothing before it does."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

import onnxq
from onnxq import Options
from onnxq.backend_choice import backend_named
from onnxq.deciding.tails import amplified_tails
from onnxq.graph.passes.normalize import normalize
from onnxq.planning.planner import make_plan
from tests.models import build, f32, images, normal


def depth(more: str = "", outputs: str = "") -> onnx.ModelProto:
    """A disparity and its depth, as nets that see depth compute it."""
    return build(
        f"""(float[1, 3, 16, 16] x) => (float[1, 1, 16, 16] disp, float[1, 1, 16, 16] y{outputs}) {{
            [first] a = Conv <pads = [1, 1, 1, 1]> (x, w)
            r = Relu (a)
            [second] b = Conv (r, v, far)
            [squash] disp = Sigmoid (b)
            [scaled] s = Mul (disp, span)
            [shifted] t = Add (s, least)
            [inverse] y = Reciprocal (t)
            {more}
        }}""",
        w=normal(8, 3, 3, 3),
        v=normal(1, 8, 1, 1, seed=1, scale=0.3),
        far=f32([-4.0]),
        span=f32([9.99]),
        least=f32([0.01]),
    )


def tails(model: onnx.ModelProto, *exclude: str) -> list[tuple[str, ...]]:
    loaded, target = ir.serde.deserialize_model(model), backend_named("rknn")
    normalize(loaded)
    return amplified_tails(loaded, make_plan(loaded, target, Options(placement="all", exclude=exclude)), target)


def test_a_tail_ends_at_the_layer_in_front() -> None:
    assert tails(depth()) == [("squash", "scaled", "shifted")]


def test_what_another_integer_operator_reads_is_no_tail() -> None:
    assert tails(depth("z = Mul (disp, disp)", ", float[1, 1, 16, 16] z")) == [("scaled", "shifted")]


def test_a_tail_ends_at_what_is_float_already() -> None:
    assert tails(depth(), "scaled") == [("shifted",)]


def test_without_an_amplifier_there_is_none() -> None:
    model = depth()
    model.graph.node[-1].op_type = "Neg"
    assert tails(model) == []


@pytest.mark.parametrize("backend", ["rknn", "tvm"])
def test_a_tail_that_costs_much_stays_float(backend: str) -> None:
    result = onnxq.quantize(depth(), images(1, 3, 16, 16, samples=32), backend=backend)
    reasons = {kept.node: kept.reason for kept in result.plan.kept_float}
    assert {"squash", "scaled", "shifted"} <= reasons.keys() and {"first", "second"} <= result.plan.quantized.keys()
    assert "float arithmetic after it amplifies what its integers leave: output 'y'" in reasons["shifted"]


def test_a_target_of_integers_alone_has_none_left_out() -> None:
    result = onnxq.quantize(depth(), images(1, 3, 16, 16, samples=32), backend="qnn")
    assert {"squash", "scaled", "shifted"} <= result.plan.quantized.keys()
