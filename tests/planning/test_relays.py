"""What only moves values between float operators is quantized nowhere for nothing."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from onnxq.backend import Kind, OpRule
from onnxq.backend_choice import backend_named
from onnxq.graph.passes.normalize import normalize
from onnxq.options import Options
from onnxq.plan import Plan
from onnxq.planning.planner import make_plan
from onnxq.planning.relays import between, idle_relays
from tests.models import build, normal


def plan(backend: str, options: Options | None = None) -> Plan:
    """A soft-argmax behind a convolution: shapes change between operators that few targets quantize."""
    net = build(
        """(float[1, 4, 6, 6] x) => (float[4, 1, 1] y) {
            c = Conv (x, w)
            r = Reshape (c, flat)
            e = Exp (r)
            s = ReduceSum <keepdims = 1> (e, axis)
            p = Div (e, s)
            t = Reshape (p, flat)
            u = Squeeze (t, first)
            v = Unsqueeze (u, second)
            y = ReduceSum <keepdims = 1> (v, axis)
        }""",
        w=normal(4, 4, 1, 1),
        flat=np.array([1, 4, 36]),
        axis=np.array([2]),
        first=np.array([0]),
        second=np.array([1]),
    )
    model = ir.serde.deserialize_model(net)
    normalize(model)
    return make_plan(model, backend_named(backend), options)


@pytest.mark.parametrize(("backend", "why"), [("openvino", "no integer operator reads it"), ("tvm", "moves values")])
def test_movement_between_float_operators_stays_float(backend: str, why: str) -> None:
    found = plan(backend)
    reasons = {kept.node: kept.reason for kept in found.kept_float}
    moved = [site.tensor for site in found.sites if site.tensor in ("p", "t", "u", "v")]
    assert not moved and "Conv" in found.quantized.values()
    assert why in reasons["Reshape_1"] and why in reasons["Squeeze"] and why in reasons["Unsqueeze"]


def test_movement_behind_an_integer_operator_is_in_integers_where_its_output_is_quantized() -> None:
    assert "Reshape" in plan("tvm").quantized, "its numbers are those of the convolution's grid already"


def test_placement_all_quantizes_it() -> None:
    assert {"Reshape_1", "Squeeze", "Unsqueeze"} <= plan("tvm", Options(placement="all")).quantized.keys()


def test_movement_that_was_asked_for_by_name_is_quantized() -> None:
    found = plan("tvm", Options(include=("Conv", "Squeeze")))
    assert "Squeeze" in found.quantized


def test_a_target_of_integers_alone_quantizes_it() -> None:
    assert {"Reshape_1", "Squeeze", "Unsqueeze"} <= plan("qnn").quantized.keys()


@pytest.mark.parametrize("backend", ["qnn", "vitis"])
def test_movement_around_a_recurrent_net_that_such_a_target_computes_in_float_stays_float(backend: str) -> None:
    net = build(
        """(float[1, 8, 4] x) => (float[1, 3] y) {
            [first] t = Transpose <perm = [1, 0, 2]> (x)
            a = LSTM <hidden_size = 4> (t, w, r)
            [inner] s = Squeeze (a, axis)
            b, h = LSTM <hidden_size = 4> (s, w, r)
            [last] e = Squeeze (h, front)
            y = Gemm (e, v)
        }""",
        w=normal(1, 16, 4),
        r=normal(1, 16, 4),
        v=normal(4, 3),
        axis=np.array([1]),
        front=np.array([0]),
    )
    model = ir.serde.deserialize_model(net)
    normalize(model)
    found = make_plan(model, backend_named(backend))
    reasons = {kept.node: kept.reason for kept in found.kept_float}
    moved = "it only moves values from one float operator to another"
    assert (reasons["first"], reasons["inner"]) == (moved, moved)
    assert {"last", "Gemm"} <= found.quantized.keys(), "an operator in integers reads it"
    assert not {"x", "t", "a", "s"} & {site.tensor for site in found.sites}


def test_of_movement_between_some_operators_only_that_is_left() -> None:
    text = """(float[4, 4] x) => (float[4, 4] y, float[4, 4] z) {
        [r] r = Reshape (x, flat)  [t] t = Transpose (r)  e = Exp (t)  [u] u = Transpose (e)  l = Exp (u)
        [v] v = Transpose (e)  n = Neg (v)  [o] z = Transpose (l)  y = Add (l, n)
    }"""
    model = ir.from_proto(build(text, flat=np.array([4, 4])))
    moving = {node: "why" for node in model.graph if node.op_type in ("Reshape", "Transpose")}
    assert [node.name for node in between(moving, {"Exp"}, 1024)] == ["r", "t", "u"], "Neg reads v, nothing reads o"
    assert [node.name for node in between(moving, {"Exp", "Neg"}, 1024)] == ["r", "t", "u", "v"]
    assert not between(moving, set(), 1024)


@pytest.mark.parametrize("backend", ["qnn", "vitis"])
def test_a_table_in_front_of_an_lstm_is_stored_in_integers(backend: str) -> None:
    model = build(
        """(float[7, 1, 8] x) => (float[14, 1, 4] y) {
            [joined] t = Concat <axis = 0> (x, table)
            l = LSTM <hidden_size = 4> (t, w, r)
            [axes] y = Squeeze (l, front)
        }""",
        table=normal(7 * 64, 1, 8),
        w=normal(1, 16, 8),
        r=normal(1, 16, 4),
        front=np.array([1]),
    )
    large = ir.serde.deserialize_model(model)
    assert "joined" in make_plan(large, backend_named(backend)).quantized


def relays(text: str, *, reads: bool) -> dict[str, str]:
    """Nodes of a graph that are better left float, where all but Exp may run in integers.

    Args:
        text: the graph.
        reads: rows of movement ask for a quantizer behind it.
    """
    model = ir.from_proto(build(text, w=normal(4, 4), flat=np.array([4, 4])))
    kinds = {"MatMul": Kind.COMPUTE, "Reshape": Kind.MOVEMENT, "Transpose": Kind.MOVEMENT, "Concat": Kind.ELEMENTWISE}
    rules = {
        node: OpRule(node.op_type, kinds[node.op_type], output=reads) for node in model.graph if node.op_type in kinds
    }
    found = idle_relays(rules, lambda node: node.outputs[0], {}, set())
    return {node.name or "": why for node, why in found.items()}


@pytest.mark.parametrize("reads", [True, False])
def test_what_leads_to_an_integer_operator_runs_in_integers(reads: bool) -> None:
    text = """(float[4, 4] x) => (float[4, 4] y) {
        e = Exp (x)  [r] r = Reshape (e, flat)  [t] t = Transpose <perm = [1, 0]> (r)  [c] c = Concat <axis = 0> (t, t)
        y = MatMul (c, w)
    }"""
    assert relays(text, reads=reads) == {}
    assert relays(text.replace("y = MatMul (c, w)", "y = Exp (c)"), reads=reads).keys() == {"r", "t", "c"}


def test_what_comes_from_one_does_where_its_row_asks_for_a_quantizer() -> None:
    text = """(float[4, 4] x) => (float[4, 4] y) {
        p = MatMul (x, w)  [r] r = Reshape (p, flat)  [c] c = Concat <axis = 0> (r, r)  y = Exp (c)
    }"""
    assert relays(text, reads=True) == {}
    assert relays(text, reads=False) == dict.fromkeys("rc", "no integer operator reads it")
