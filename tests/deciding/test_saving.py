"""The share of time that integers save is that of the target's table of costs."""

from __future__ import annotations

import math

import onnx_ir as ir
import pytest

import onnxq
from onnxq.backend_choice import backend_named
from onnxq.deciding.saving import Saving, saving
from onnxq.graph.traverse import all_nodes
from onnxq.planning.table_rows import row
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
        times[node.name] = list(rule.costs(node, sizes[node.outputs[0].name or ""]))
    plan = onnxq.plan(model, options=onnxq.Options(placement="compute", exclude=("second",)))
    assert set(plan.quantized) == {"first"}
    expected = (times["first"][0] - times["first"][1]) / (times["first"][0] + times["second"][0])
    assert 0.15 < expected == pytest.approx(saving(model, plan, target, sizes).most)
    none = onnxq.plan(model, options=onnxq.Options(exclude=("Conv",)))
    assert saving(model, none, target, sizes) == Saving(0.0, 0.0)


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
    saved = saving(plain, plan, target, {"a": 144})
    assert saved.most != 0 and saving(longer, plan, target, {"a": 144, "b": 10**9}).most == pytest.approx(saved.most)
    assert saving(without, plan, target, {}) == Saving(0.0, 0.0)


def test_conversions_are_paid_where_integers_begin_and_end() -> None:
    """What enters is quantized, what two float nodes read is dequantized twice, and nothing is between the layers."""
    text = """(float[1, 32, 24, 24] x) => (float[1, 32, 24, 24] y, float[1, 32, 24, 24] z) {
        [before] s = Erf (x)
        [first] a = Conv (s, w)
        [relu] r = Relu (a)
        [second] b = Conv (r, v)
        y = Erf (b)
        z = Sin (b)
    }"""
    model = ir.from_proto(build(text, w=normal(32, 32, 1, 1), v=normal(32, 32, 1, 1)))
    target, size = backend_named("onnxruntime"), 32 * 24 * 24
    plan = onnxq.plan(model, options=onnxq.Options(placement="compute"))
    assert set(plan.quantized) == {"first", "second"} and len(plan.absorbed) == 1
    whole = sum(rule.costs(node, size)[0] for node in all_nodes(model) if (rule := row(target, node)) is not None)
    paid = (target.quantize_cost + 2 * target.dequantize_cost) * size + 3 * target.node_cost
    found = saving(model, plan, target, dict.fromkeys("xsarbyz", size))
    assert found.net == pytest.approx(found.most - paid / whole)


def test_leaving_the_layout_of_float_convolutions_is_paid() -> None:
    text = (
        """(float[1, 32, 24, 24] x) => (float[1, 32, 24, 24] y) { [first] a = Conv (x, w) [second] y = Conv (a, v) }"""
    )
    model = ir.from_proto(build(text, w=normal(32, 32, 1, 1), v=normal(32, 32, 1, 1)))
    target, size = backend_named("onnxruntime"), 32 * 24 * 24
    plan = onnxq.plan(model, options=onnxq.Options(placement="compute", exclude=("first",)))
    whole = sum(rule.costs(node, size)[0] for node in all_nodes(model) if (rule := row(target, node)) is not None)
    outputs = sum(site.tensor == "y" and site.role == "activation" for site in plan.sites)
    paid = (target.quantize_cost + target.reorder_cost + outputs * target.dequantize_cost) * size
    found = saving(model, plan, target, dict.fromkeys("xay", size))
    assert found.net == pytest.approx(found.most - (paid + (1 + outputs) * target.node_cost) / whole)


def test_of_tensors_without_known_sizes_nothing_is_said_to_be_lost() -> None:
    """Of a text encoder whose shapes are not inferred each product counts as one element, a conversion as a node."""
    text = "(float[n, 32] x) => (float[n, 32] y) { s = Erf (x) [first] a = MatMul (s, w) y = Erf (a) }"
    model = ir.from_proto(build(text, w=normal(32, 32)))
    target, plan = backend_named("onnxruntime"), onnxq.plan(model, options=onnxq.Options(placement="compute"))
    assert set(plan.quantized) == {"first"}
    assert saving(model, plan, target, {"x": 320, "s": 320}).net == math.inf
    assert saving(model, plan, target, {"x": 320, "s": 320, "a": 320}).net < 1
