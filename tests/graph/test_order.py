from __future__ import annotations

import onnx_ir as ir

from onnxq.graph.order import sort_nodes
from tests.graph.helpers import build

DIAMOND = "g (float[2] x) => (float[2] y) { a = Neg(x) \n b = Abs(a) \n c = Relu(a) \n y = Add(b, c) }"
BRANCHES = """g (float[2] x, bool c) => (float[2] y) {
    t = Neg(x)
    y = If (c) <then_branch = a () => (float[2] p) { p = Abs(t) },
                else_branch = b () => (float[2] q) { q = Abs(x) }> }"""


def order(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def test_what_is_sorted_stays_as_it_is() -> None:
    model = ir.from_proto(build(DIAMOND))
    sort_nodes(model.graph)
    assert order(model) == ["Neg", "Abs", "Relu", "Add"]


def test_readers_come_behind_what_they_read() -> None:
    for text, first in ((DIAMOND, "Neg"), (BRANCHES, "Neg")):
        model = ir.from_proto(build(text))
        node = model.graph[0]
        model.graph.remove(node)
        model.graph.append(node)
        sort_nodes(model.graph)
        assert order(model)[0] == first
