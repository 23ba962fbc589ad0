"""Inputs that the numbers of a tensor depend on."""

from __future__ import annotations

from onnxq.graph.files.load import load
from onnxq.graph.recognition.dependence import inputs_behind
from tests.models import build


def test_what_a_branch_reads_counts_and_shapes_do_not() -> None:
    model = load(
        build(
            """(bool c, float[2] a, float[2] b, float[2] s) => (float[2] y, float[2] z) {
                y = If (c) <then_branch = t () => (float[2] p) { p = Relu (a) },
                            else_branch = e () => (float[2] n) { q = Neg (b)\n n = Identity (q) }>
                n2 = Shape (s)
                z = Expand (a, n2) }"""
        )
    )
    y, z = model.graph.outputs
    assert inputs_behind(y) == {"c", "a", "b"}
    assert inputs_behind(z) == {"a"}
