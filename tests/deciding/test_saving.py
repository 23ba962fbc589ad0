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
