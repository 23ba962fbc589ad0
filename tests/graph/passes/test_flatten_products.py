"""Products over many batch dimensions, written with one."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxq
from onnxq.graph.passes.flatten_products import flatten_products
from onnxq.graph.shapes import infer_shapes
from onnxq.ort.session import Session
from tests.models import build, feeds_for, normal


def deep(first: str = "2", middle: str = "3") -> onnx.ModelProto:
    sizes = f"{first}, {middle}, 2"
    return build(
        f"(float[{sizes}, 3, 8] x, float[{sizes}, 8, 5] z) => (float[{sizes}, 3, 5] y) {{ [p] y = MatMul (x, z) }}"
    )


def flattened(proto: onnx.ModelProto, most: int = 4) -> ir.Model:
    model = ir.from_proto(proto)
    infer_shapes(model)
    flatten_products(model, most)
    return model


@pytest.mark.parametrize("first", ["2", "N"])
def test_the_numbers_and_names_stay(first: str) -> None:
    source = deep(first)
    model = flattened(source)
    assert [node.op_type for node in model.graph] == ["Reshape", "Reshape", "MatMul", "Reshape"]
    (product,) = (node for node in model.graph if node.op_type == "MatMul")
    assert product.name == "p" and product.inputs[0] is not None and len(product.inputs[0].shape or ()) == 3
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    for feed in feeds_for(source, samples=2):
        feeds = {name: np.concatenate([array] * 2) if first == "N" else array for name, array in feed.items()}
        want = Session(ir.from_proto(source), optimize=False).run(feeds)["y"]
        np.testing.assert_array_equal(Session(model, optimize=False).run(feeds)["y"], want)


def test_what_is_left() -> None:
    for source in (
        deep("2", "N"),  # a size that is not known
        build("(float[2, 1, 2, 3, 8] x, float[2, 3, 2, 8, 5] z) => (float[2, 3, 2, 3, 5] y) { y = MatMul (x, z) }"),
        build("(float[2, 3, 2, 3, 8] x) => (float[2, 3, 2, 3, 5] y) { y = MatMul (x, w) }", w=normal(8, 5)),
        build("(float[3, 2, 3, 8] x, float[3, 2, 8, 5] z) => (float[3, 2, 3, 5] y) { y = MatMul (x, z) }"),
    ):
        assert [node.op_type for node in flattened(source).graph] == ["MatMul"]


def test_for_the_htp() -> None:
    plan = onnxq.plan(deep(), backend="qnn")
    assert not plan.kept_float and plan.quantized["p"] == "MatMul"
    (kept,) = onnxq.plan(deep("2", "N"), backend="qnn").kept_float
    assert kept.node == "p" and "five dimensions" in kept.reason
