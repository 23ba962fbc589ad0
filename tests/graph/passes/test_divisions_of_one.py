from __future__ import annotations

import numpy as np
import pytest

from onnxq.graph.passes.divisions_of_one import divisions_of_one
from onnxq.graph.traverse import all_nodes
from tests.graph.helpers import apply, build, ops


@pytest.mark.parametrize("kind", ["float", "float16", "double"])
def test_a_reciprocal_divides_one(kind: str) -> None:
    dtype = {"float": np.float32, "float16": np.float16, "double": np.float64}[kind]
    feeds = {"x": np.linspace(0.01, 9, 24).reshape(4, 6).astype(dtype)}
    proto = build(f"g ({kind}[n,6] x) => ({kind}[n,6] y, {kind}[n,6] z) {{ [inv] y = Reciprocal(x) \n z = Neg(y) }}")
    model, notes = apply(divisions_of_one, proto, feeds, tolerance=0)
    assert ops(model) == ["Div", "Neg"]
    assert [note.message for note in notes] == ["1 reciprocals divide 1"]
    assert next(iter(all_nodes(model))).name == "inv"


def test_in_a_branch() -> None:
    text = """g (float[4] x, bool c) => (float[4] y) {
        y = If (c) <then_branch = a () => (float[4] p) { p = Reciprocal(x) },
                    else_branch = b () => (float[4] q) { q = Neg(x) }> }"""
    feeds = {"x": np.array([1, 2, 4, -8], np.float32), "c": np.array(True)}
    assert "Reciprocal" not in ops(apply(divisions_of_one, build(text), feeds, tolerance=0)[0])
