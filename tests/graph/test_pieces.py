"""Pieces of graphs: what they read, where two graphs differ, and a piece run for itself."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxq.graph.files.load import load
from onnxq.graph.pieces import difference, piece, reads
from onnxq.ort.session import Session
from tests.models import build, f32


def chain(*, second: str = "Relu", bound: float = 2.0) -> ir.Model:
    text = f"""(float[4] x) => (float[4] z) {{
        a = Neg (x)
        b = {second} (a)
        c = Mul (b, k)
        d = LeakyRelu <alpha = 0.5> (c)
        z = Add (d, a)
    }}"""
    return load(build(text, k=f32(bound)))


def nodes(model: ir.Model) -> list[ir.Node]:
    return list(model.graph)


def test_where_two_graphs_differ() -> None:
    one = nodes(chain())
    assert difference(one, nodes(chain())) == (5, 0)
    assert difference(one, nodes(chain(second="Abs"))) == (1, 3)
    assert difference(one, nodes(chain(bound=3.0))) == (2, 2), "a constant of other numbers"
    assert difference(one, one[:2] + one[3:]) == (2, 2)
    other = chain()
    other.graph[3].attributes["alpha"] = ir.AttrFloat32("alpha", 0.25)
    assert difference(one, nodes(other)) == (3, 1)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Clip (x, k)", "Clip (x, k, m)"),
        ("Clip (x, k)", "Clip (x, , k)"),
        ("Clip (x, k)", "Clip (x, m)"),
        ("LeakyRelu (x)", "LeakyRelu <alpha = 0.5> (x)"),
        ("LeakyRelu <alpha = 0.5> (x)", "LeakyRelu (x)"),
        ("Add (x, x)", "Mul (x, x)"),
        ("Gelu (x)", "com.microsoft.Gelu (x)"),
    ],
)
def test_nodes_that_compute_something_else(one: str, other: str) -> None:
    first, second = (
        nodes(
            load(
                build(
                    f"(float[4] x) => (float[4] z) {{ y = {text} \n z = Abs (y) }}",
                    k=f32(0.25),
                    m=f32(1),
                    opset=20,
                    domains={"com.microsoft": 1},
                )
            )
        )
        for text in (one, other)
    )
    assert difference(first, second) == (0, 1)


def test_nodes_with_bodies_never_count_as_equal() -> None:
    text = """(float[4] x, bool k) => (float[4] z) {
        a = Neg (x)
        b = If (k) <
            then_branch = t () => (float[4] p) { p = Abs (a) }, else_branch = e () => (float[4] q) { q = Neg (x) }
        >
        z = Add (b, a)
    }"""
    one, other = load(build(text)), load(build(text))
    assert difference(nodes(one), nodes(other)) == (1, 1)
    assert [value.name for value in reads(one.graph[1])] == ["k", "a", "x"], "what the branches read counts"


def test_a_piece_runs_for_itself() -> None:
    model = chain()
    a = ir.Value(name="a", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([None]))
    cut = piece(model, nodes(model)[1:4], {"a": a}, {"d", "c", "z"})
    x = f32([-3, 1, 2, -0.5])
    got = Session(cut).run({"a": x})
    assert {name: array.tolist() for name, array in got.items()} == {
        "c": (2 * np.maximum(x, 0)).tolist(),
        "d": (2 * np.maximum(x, 0)).tolist(),
    }
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    assert Session(model).run({"x": x})["z"].tolist() == (2 * np.maximum(-x, 0) - x).tolist()
