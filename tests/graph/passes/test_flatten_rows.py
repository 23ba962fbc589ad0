"""Operators that compute each row, or each element, by itself, on tensors of fewer dimensions."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxq
from onnxq.graph.passes.flatten_rows import flatten_rows
from onnxq.graph.shapes import infer_shapes
from onnxq.ort.session import Session
from tests.models import build, f32, feeds_for, normal

NODES: list[tuple[str, dict[str, Any]]] = [
    ("y = Tanh (x)", {}),
    ("y = Elu <alpha = 0.5> (x)", {}),
    ("y = Clip (x, low, high)", {"low": f32(-0.5), "high": f32(0.25)}),
    ("y = LogSoftmax (x)", {}),
    ("y = LpNormalization <axis = 4, p = 1> (x)", {}),
    ("y = LayerNormalization <epsilon = 0.01> (x, s, b)", {"s": normal(8), "b": normal(8, seed=1)}),
    ("y = MatMul (x, w)", {"w": normal(8, 5)}),
]


def model_of(node: str, sizes: str, constants: dict[str, Any]) -> onnx.ModelProto:
    result = sizes.rpartition(",")[0] + (", 5" if "MatMul" in node else ", 8")
    return build(f"(float[{sizes}] x) => (float[{result}] y) {{ [n] {node} }}", opset=20, **constants)


def flattened(source: onnx.ModelProto, most: int = 4) -> ir.Model:
    model = ir.from_proto(source)
    infer_shapes(model)
    flatten_rows(model, most, lambda node: True)
    return model


@pytest.mark.parametrize(("node", "constants"), NODES)
@pytest.mark.parametrize("sizes", ["2, 3, 2, 3, 8", "N, 3, 2, 3, 8", "2, 3, N, 3, 8"])
def test_the_numbers_and_names_stay(node: str, sizes: str, constants: dict[str, Any]) -> None:
    source = model_of(node, sizes, constants)
    model = flattened(source)
    first, made, last = model.graph
    assert (first.op_type, made.name, last.op_type) == ("Reshape", "n", "Reshape")
    assert made.outputs[0].shape is not None and len(made.outputs[0].shape) == 4
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    for feeds in feeds_for(source, samples=2):
        want = Session(ir.from_proto(source), optimize=False).run(feeds)["y"]
        np.testing.assert_array_equal(Session(model, optimize=False).run(feeds)["y"], want)


@pytest.mark.parametrize(("more", "reshapes"), [("", 2), (", float[2, 3, 2, 3, 8] a", 3)])
def test_nothing_is_between_those_that_follow_each_other(more: str, reshapes: int) -> None:
    source = build(
        f"(float[2, 3, 2, 3, 8] x) => (float[2, 3, 2, 3, 8] y{more}) {{ a = Tanh (x) b = Exp (a) y = Neg (b) }}"
    )
    model = flattened(source)
    assert [node.op_type for node in model.graph].count("Reshape") == reshapes
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    (feeds,) = feeds_for(source, samples=1)
    for name, want in Session(ir.from_proto(source), optimize=False).run(feeds).items():
        np.testing.assert_array_equal(Session(model, optimize=False).run(feeds)[name], want)


@pytest.mark.parametrize(
    ("node", "sizes", "constants"),
    [
        ("y = Tanh (x)", "2, 3, 2, 8", {}),  # few enough dimensions
        ("y = Tanh (x)", "N, 3, M, 2, 8", {}),  # two sizes not known
        ("y = Tanh (x)", "2, 0, 2, 2, 8", {}),  # no elements
        ("y = LogSoftmax <axis = 1> (x)", "2, 3, 2, 2, 8", {}),
        ("y = LayerNormalization <axis = 3> (x, s)", "2, 3, 2, 2, 8", {"s": normal(2, 8)}),
        ("y = MatMul (x, w)", "2, 3, 2, 2, 8", {"w": normal(2, 8, 5)}),
        ("y = Add (x, w)", "2, 3, 2, 2, 8", {"w": normal(2, 8)}),
    ],
)
def test_what_is_left(node: str, sizes: str, constants: dict[str, Any]) -> None:
    (only,) = flattened(model_of(node, sizes, constants)).graph
    assert only.name == "n"


def test_for_the_htp() -> None:
    volumes = build(
        "(float[1, 4, 5, 6, 8] x) => (float[1, 4, 5, 6, 8] y) { e = Elu (x) r = Relu (e) y = Softplus (r) }"
    )
    plan = onnxq.plan(volumes, backend="qnn")
    assert not plan.kept_float and {"Elu", "Relu", "Softplus"} <= {*plan.quantized.values()}
