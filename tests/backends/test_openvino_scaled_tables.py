"""Scalars of the rows of a table become part of it, where OpenVINO refuses them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from onnxq.backends.openvino.scaled_tables import scaled_tables
from tests.graph.helpers import apply
from tests.models import build, normal

FEEDS = {"i": np.array([0, 7, 3, 3]), "x": normal(8, 4, seed=1)}


def rows(text: str, *, table: str = "table", also: str = "") -> onnx.ModelProto:
    model = build(
        f"(int64[4] i, float[8, 4] x) => (float[4, 4] y, float[?, ?] z{also}) {{ e = Gather ({table}, i) {text} }}",
        table=normal(8, 4),
        c=np.float32(3),
        d=np.array([0.7], np.float32),
        v=normal(4),
        deep=np.full((1, 1, 1), 2, np.float32),
    )
    return onnx.shape_inference.infer_shapes(model)


@pytest.mark.parametrize(
    ("text", "folded"),
    [
        ("f = Mul (e, c) y = Mul (f, d)", 2),
        ("f = Add (c, e) y = Mul (d, f)", 2),
        ("f = Mul (e, c) g = Sub (f, d) y = Div (c, g)", 3),
        ("y = Sub (e, c)", 1),
        ("y = Sub (c, e)", 1),
        ("y = Div (e, d)", 1),
        ("y = Div (d, e)", 1),
        ("t = Transpose (e) y = Sub (t, c)", 1),
        ("f = Mul (e, c) t = Transpose (f) y = Add (t, d)", 2),
        ("y = Mul (e, c)", 0),
        ("y = Sub (e, v)", 0),
        ("u = Sub (e, deep) y = Squeeze (u)", 0),
        ("f = Mul (e, v) y = Mul (f, c)", 0),
        ("f = Sigmoid (e) y = Sub (f, c)", 0),
    ],
)
def test_the_numbers_are_the_same(text: str, folded: int) -> None:
    changed, notes = apply(scaled_tables, rows(f"{text} z = Relu (y)"), FEEDS, tolerance=0)
    count = sum(node.op_type in ("Add", "Div", "Mul", "Sub") for node in changed.graph)
    assert count == sum(text.count(f"{op} (") for op in ("Add", "Div", "Mul", "Sub")) - folded
    assert [note.message for note in notes] == ([f"{folded} scalars are part of a table"] if folded else [])


@pytest.mark.parametrize(
    "text",
    [
        "y = Sub (e, c) z = Relu (e)",  # the rows are read as they are, too
        "f = Mul (e, c) y = Mul (f, d) z = Relu (f)",
    ],
)
def test_rows_that_others_read_stay(text: str) -> None:
    changed, notes = apply(scaled_tables, rows(text), FEEDS, tolerance=0)
    assert notes == []
    assert next(node.op_type for node in changed.graph) == "Gather"


def test_a_table_that_others_read_is_copied() -> None:
    model = rows("y = Sub (e, c) z = MatMul (x, w)")
    model.graph.node[-1].input[1] = "back"
    model.graph.node.insert(0, onnx.helper.make_node("Transpose", ["table"], ["back"]))
    changed, notes = apply(scaled_tables, model, FEEDS, tolerance=0)
    assert len(notes) == 1
    gather = next(node for node in changed.graph if node.op_type == "Gather")
    assert gather.inputs[0] is not None and gather.inputs[0].name != "table"
    assert "table" in changed.graph.initializers


def test_rows_that_are_an_input_and_integers_stay() -> None:
    assert apply(scaled_tables, rows("y = Sub (e, c) z = Relu (y)", table="x"), FEEDS, tolerance=0)[1] == []
    model = build(
        "(int64[4] i) => (int64[4, 4] y) { e = Gather (table, i) y = Sub (e, c) }",
        table=np.arange(32).reshape(8, 4),
        c=np.array(3),
    )
    assert apply(scaled_tables, model, {"i": FEEDS["i"]}, tolerance=0)[1] == []
