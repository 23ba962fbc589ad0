"""Which activation functions are computed together with the operator before them."""

from __future__ import annotations

from dataclasses import replace

import onnx
import onnx_ir as ir
import pytest

import onnxq
from onnxq import Options, Plan
from onnxq.backend_choice import backend_named
from onnxq.planning.planner import make_plan
from onnxq.prepare import Prepared
from tests.models import build, f32, normal

TARGET = "ppl_cuda"
"""It takes in Relu, Clip, Sigmoid and LeakyRelu, and computes them by themselves as well."""


def model(body: str, outputs: str = "float[1, 4, 6, 6] y") -> onnx.ModelProto:
    text = f"(float[1, 4, 6, 6] x) => ({outputs}) {{ {body} }}"
    return build(text, w=normal(4, 4, 1, 1), low=f32(0.0))


def planned(body: str, outputs: str = "float[1, 4, 6, 6] y", exclude: tuple[str, ...] = ()) -> Plan:
    return onnxq.plan(model(body, outputs), backend=TARGET, options=Options(placement="all", exclude=exclude))


def _never(producer: ir.Node, function: ir.Node) -> bool:
    return False


def _always(producer: ir.Node, function: ir.Node) -> bool:
    return True


CONV = "[conv] c = Conv (x, w)\n"


@pytest.mark.parametrize(
    ("body", "into"),
    [
        (f"{CONV} [act] y = Relu (c)", "conv"),
        (f"{CONV} [act] y = Clip (c, low)", "conv"),
        (f"{CONV} [act] y = Sigmoid (c)", "conv"),
        ("[sum] s = Add (x, x)\n [act] y = Sigmoid (s)", "sum"),
        (f"{CONV} p, q = Split <axis = 1> (c)\n [act] r = Relu (p)\n y = Add (r, q)", None),
        (f"{CONV} m = Abs (x)\n b = ReduceMax <keepdims = 0> (m)\n [act] y = Clip (c, b)", None),
        ("[gate] s = Sigmoid (x)\n [act] y = Relu (s)", None),  # whose range is that of Sigmoid, whatever follows
        (f"{CONV} [join] j = Concat <axis = 2> (c, x)\n [act] y = Relu (j)", "join"),
        (f"{CONV} [join] j = Concat <axis = 2> (c, x)\n [act] y = Sigmoid (j)", None),  # its codes are those it reads
    ],
)
def test_what_is_taken_in(body: str, into: str | None) -> None:
    plan = planned(body, "float[N, M, K, L] y")
    assert plan.absorbed == ({} if into is None else {"act": into})
    assert {"act"} - set(plan.absorbed) <= set(plan.quantized), "by itself it has a row of its own"


def test_what_is_read_elsewhere_too_is_not() -> None:
    body = f"{CONV} [act] y = Relu (c)\n z = Neg (c)"
    assert planned(body, "float[1, 4, 6, 6] y, float[1, 4, 6, 6] z").absorbed == {}
    assert planned(f"{CONV} [act] y = Relu (c)", "float[1, 4, 6, 6] c, float[1, 4, 6, 6] y").absorbed == {}
    text = """(float[1, 4, 6, 6] x, bool c) => (float[1, 4, 6, 6] y) {
        [conv] a = Conv (x, w)
        y = If (c) <
            then_branch = g1 () => (float[1, 4, 6, 6] t) { [act] t = Relu (a) },
            else_branch = g2 () => (float[1, 4, 6, 6] e) { e = Neg (x) }
        >
    }"""
    made = onnxq.plan(build(text, w=normal(4, 4, 1, 1)), backend=TARGET, options=Options(placement="all"))
    assert made.absorbed == {}


@pytest.mark.parametrize("name", ["act", "Relu"])
def test_what_is_excluded_stays_float(name: str) -> None:
    plan = planned(f"{CONV} [act] y = Relu (c)", exclude=(name,))
    assert plan.absorbed == {} and set(plan.quantized) == {"conv"}


def test_behind_what_data_keeps_float_it_stays_float_too() -> None:
    """Data has not seen the tensor between the two, so there is no range for it; one that the user excludes, it has."""
    body = f"{CONV} [act] y = Relu (c)"
    target, options = backend_named(TARGET), Options(placement="all")
    prepared = Prepared(model(body), options).for_target(target, options)[0]
    for kept in ({"conv": "why"}, {"act": "why"}):
        plan = make_plan(prepared, target, options, keep_float=kept)
        assert plan.absorbed == {}
        assert set(plan.quantized) == ({"conv"} if "act" in kept else set())
    reasons = {k.node: k.reason for k in make_plan(prepared, target, options, keep_float={"conv": "why"}).kept_float}
    assert reasons == {"conv": "why", "act": "the operator before it stays float"}
    assert set(planned(body, exclude=("conv",)).quantized) == {"act"}


def test_a_target_may_say_itself_what_it_takes_in() -> None:
    body = f"{CONV} [act] y = Relu (c)"
    options = Options(placement="all")
    for says in (True, False):
        target = replace(backend_named(TARGET), absorbs=[_never, _always][says])
        prepared = Prepared(model(body), options).for_target(target, options)[0]
        assert make_plan(prepared, target, options).absorbed == ({"act": "conv"} if says else {})
        left = make_plan(prepared, target, options, keep_float={"conv": "why"})
        assert set(left.quantized) == (set() if says else {"act"})
