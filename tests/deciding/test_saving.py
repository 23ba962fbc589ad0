"""The share of time that integers save is that of the target's table of costs."""

from __future__ import annotations

import onnx_ir as ir
import pytest

import onnxq
from onnxq.deciding.saving import most_saved
from onnxq.graph.traverse import all_nodes
from onnxq.planning.table_rows import row
from onnxq.prepare import backend_named
from tests.models import build, normal


def test_it_is_what_the_table_says_of_the_layers_in_integers() -> None:
    text = """(float[1, 32, 24, 24] x) => (float[1, 16, 24, 24] y) {
        [first] a = Conv (x, w)
        [second] y = Conv (a, v)
    }"""
    model = ir.from_proto(build(text, w=normal(32, 32, 1, 1), v=normal(16, 32, 1, 1)))
    target, sizes = backend_named("onnxruntime"), {"a": 32 * 24 * 24, "y": 16 * 24 * 24}
    times = {}
    for node in all_nodes(model):
        rule = row(target, node)
        assert rule is not None
        times[node.name] = [cost * sizes[node.outputs[0].name or ""] for cost in rule.costs(node)]
    plan = onnxq.plan(model, options=onnxq.Options(placement="compute", exclude=("second",)))
    assert set(plan.quantized) == {"first"}
    expected = (times["first"][0] - times["first"][1]) / (times["first"][0] + times["second"][0])
    assert 0.2 < expected == pytest.approx(most_saved(model, plan, target, sizes))
    none = onnxq.plan(model, options=onnxq.Options(exclude=("Conv",)))
    assert most_saved(model, none, target, sizes) == 0.0


def test_operators_that_the_table_does_not_know_count_as_taking_no_time() -> None:
    text = "(float[1, 4, 6, 6] x) => (float[1, 4, 6, 6] y) {{ [first] a = Conv (x, w) {more} }}"
    plain, longer, without = (
        ir.from_proto(build(body, w=normal(4, 4, 1, 1)))
        for body in (
            text.format(more="y = Identity (a)"),
            text.format(more="b = Erf (a) y = Identity (b)"),
            "(float[1, 4, 6, 6] x) => (float[1, 4, 6, 6] y) { y = Erf (x) }",
        )
    )
    target, plan = backend_named("onnxruntime"), onnxq.plan(plain, options=onnxq.Options(placement="compute"))
    erf = next(node for node in all_nodes(longer) if node.op_type == "Erf")
    assert set(plan.quantized) == {"first"} and row(target, erf) is None
    saved = most_saved(plain, plan, target, {"a": 144})
    assert saved != 0 and most_saved(longer, plan, target, {"a": 144, "b": 10**9}) == pytest.approx(saved)
    assert most_saved(without, plan, target, {}) == 0.0
