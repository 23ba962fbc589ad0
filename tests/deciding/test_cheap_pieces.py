"""What float makes next to no dearer, counting what it does to the nodes behind it."""

from __future__ import annotations

from functools import partial

import onnx_ir as ir
import pytest

import onnxq
from onnxq.backend_choice import backend_named
from onnxq.deciding.cheap_pieces import cheap_in_float
from onnxq.graph.files.load import load
from onnxq.graph.namer import unique_names
from tests.counting import lines_of
from tests.models import build, normal

SIDE = 32
BUDGET = 2e7
"""Of which 2 % are 2.5 times what the LeakyRelu costs in float with a quantizer behind it."""


def pieces(behind: str) -> set[str]:
    """What counts as cheap of two convolutions with a LeakyRelu and ``behind`` between them."""
    last = SIDE // 2 if "MaxPool" in behind else SIDE
    text = f"""(float[1, 64, {SIDE}, {SIDE}] x) => (float[1, 64, {last}, {last}] y) {{
        [first] a = Conv <pads = [1, 1, 1, 1]> (x, w)
        [leaky] r = LeakyRelu <alpha = 0.2> (a)
        {behind}
        [last] y = Conv <pads = [1, 1, 1, 1]> (b, v)
    }}"""
    model = ir.from_proto(build(text, w=normal(64, 64, 3, 3), v=normal(64, 64, 3, 3, seed=1)))
    plan = onnxq.plan(model, options=onnxq.Options(placement="all"))
    sizes = {**dict.fromkeys(("a", "r", "s"), 64 * SIDE * SIDE), "b": 64 * last * last}
    assert "leaky" in plan.quantized
    found = cheap_in_float(model, plan, backend_named("onnxruntime"), sizes, BUDGET)
    return {name for piece in found for name in piece}


POOL = "MaxPool <kernel_shape = [2, 2], strides = [2, 2]>"


@pytest.mark.parametrize("between", [f"[pool] b = {POOL} (r)", f"[sum] s = Add (r, r) [pool] b = {POOL} (s)"])
def test_what_a_pool_reads_is_cheap_with_the_pool(between: str) -> None:
    """The pool of a float node stays in front of the quantizer, in floats."""
    assert {"leaky", "pool"} <= pieces(between)
    assert "leaky" in pieces("[other] b = LeakyRelu <alpha = 0.1> (r)")


def test_four_times_as_long_a_chain_takes_four_times_as_long() -> None:
    def lines(length: int) -> int:
        text = "".join(f"r{k + 1} = Sigmoid (r{k})\n" for k in range(length))
        head = f"(float[1, 64, {SIDE}, {SIDE}] r0) => (float[1, 64, {SIDE}, {SIDE}] y)"
        proto = build(f"{head} {{ {text} y = Conv <pads = [1, 1, 1, 1]> (r{length}, w) }}", w=normal(64, 64, 3, 3))
        model = load(proto)
        unique_names(model)
        plan = onnxq.plan(model, options=onnxq.Options(placement="all"))
        assert len(plan.quantized) == length + 1
        backend, sizes = backend_named("onnxruntime"), {f"r{k}": 64 * SIDE * SIDE for k in range(length + 1)}
        return lines_of(partial(cheap_in_float, model, plan, backend, sizes, 1.0), "onnxq/deciding/")

    assert lines(80) < 4.5 * lines(20)
