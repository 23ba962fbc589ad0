from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from onnxq.graph.note import Note
from onnxq.graph.passes.fold_affine import fold_affine
from onnxq.graph.shapes import infer_shapes
from onnxq.options.patterns import match, names_of
from tests.graph.helpers import Array, apply, build, ops, random
from tests.models import f32

TOLERANCE = 2e-6


def change(model: ir.Model) -> list[Note]:
    return [*infer_shapes(model), *fold_affine(model)]


CONSTANTS: dict[str, Array] = {
    "w": random(6, 4, 3, 3),
    "wt": random(4, 6, 3, 3),
    "k": random(6, seed=1),
    "c4": 1 + random(1, 6, 1, 1, seed=2) ** 2,
    "c3": 1 + random(6, 1, 1, seed=3) ** 2,
    "one": np.float32(0.7),
    "vec1": f32([0.7]),
    "width": 1 + random(3, seed=4) ** 2,
}


@pytest.mark.parametrize(
    "after",
    [
        "Mul(c, c4)", "Mul(c3, c)", "Mul(c, one)", "Add(c, c4)", "Add(c3, c)", "Sub(c, c3)", "Sub(c3, c)", "Div(c, c4)",
        "Div(c, vec1)",
    ],
)  # fmt: skip
@pytest.mark.parametrize("layer", ["Conv(x, w)", "Conv(x, w, k)", "ConvTranspose<pads = [2,2,2,2]>(x, wt, k)"])
def test_after_convolutions(layer: str, after: str) -> None:
    text = f"g (float[2,4,5,5] x) => (float[2,6,3,3] y) {{ c = {layer} \n y = {after} }}"
    model, notes = apply(change, build(text, **CONSTANTS), {"x": random(2, 4, 5, 5)}, tolerance=TOLERANCE)
    assert ops(model) == [layer.split("(")[0].split("<")[0]]
    assert model.graph[0].outputs[0].name == "y"
    assert notes == [Note("fold_affine", "", "1 element-wise nodes folded into layers")]


def test_frozen_batchnorm_chain() -> None:
    text = (
        "g (float[2,4,5,5] x) => (float[2,6,3,3] y) { c = Conv(x, w) \n d = Mul(c, c3) \n "
        "e = Add(d, c4) \n y = Div(e, one) }"
    )
    model, _ = apply(change, build(text, **CONSTANTS), {"x": random(2, 4, 5, 5)}, tolerance=TOLERANCE)
    assert ops(model) == ["Conv"]


@pytest.mark.parametrize(
    "body",
    [
        "c = Conv(x, w) \n y = Mul(c, width)",  # varies along the width
        "c = Conv(x, w) \n y = Add(c, c)",
        "c = Conv(x, w) \n d = Div(one, c) \n y = Relu(d)",
        "c = Conv(x, w) \n d = Div(c, zero) \n y = Relu(d)",
        "c = Relu(x) \n d = Mul(c, one) \n y = Conv(d, w)",
        "c = Conv(x, w) \n d = Mul(c, one) \n y = Sub(d, c)",  # read twice
    ],
)
def test_left_alone(body: str) -> None:
    proto = build(f"g (float[2,4,5,5] x) => (float[2,6,3,3] y) {{ {body} }}", zero=np.float32(0), **CONSTANTS)
    count = len(proto.graph.node)
    model, notes = apply(change, proto, {"x": random(2, 4, 5, 5)})
    assert len(ops(model)) == count
    assert notes == []


def test_constant_that_widens_the_output() -> None:
    text = "g (float[1,4,5,5] x) => (float[1,6,3,3] y) { c = Conv(x, w1) \n y = Mul(c, c4) }"
    model, _ = apply(change, build(text, w1=random(1, 4, 3, 3), c4=CONSTANTS["c4"]), {"x": random(1, 4, 5, 5)})
    assert ops(model) == ["Conv", "Mul"]


def test_constant_of_higher_rank() -> None:
    text = "g (float[1,4,5,5] x) => (float[1,1,6,3,3] y) { c = Conv(x, w) \n y = Mul(c, c5) }"
    model, _ = apply(
        change, build(text, w=CONSTANTS["w"], c5=np.ones((1, 1, 1, 1, 1), np.float32)), {"x": random(1, 4, 5, 5)}
    )
    assert ops(model) == ["Conv", "Mul"]


@pytest.mark.parametrize("after", ["Mul(c, row)", "Mul(c, one)", "Div(c, row)", "Add(c, row)", "Sub(row, c)"])
def test_after_gemm(after: str) -> None:
    text = f"g (float[3,4] x) => (float[3,6] y) {{ c = Gemm<beta = 0.5, alpha = 3.0>(x, m, k) \n y = {after} }}"
    constants = {"m": random(4, 6), "row": 1 + random(6, seed=7) ** 2, "one": np.float32(2), "k": random(6, seed=1)}
    model, _ = apply(change, build(text, **constants), {"x": random(3, 4)}, tolerance=TOLERANCE)
    assert ops(model) == ["Gemm"]


MATMUL = {
    "m": random(4, 6),
    "m3": random(2, 4, 6),
    "row": 1 + random(6, seed=7) ** 2,
    "k": random(6, seed=1),
    "one": np.float32(2),
}


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("c = MatMul(x, m) \n y = Mul(c, row)", ["MatMul"]),
        ("c = MatMul(x, m3) \n y = Mul(c, one)", ["MatMul"]),
        ("c = MatMul(x, m) \n y = Add(c, k)", ["MatMul", "Add"]),
        ("c = MatMul(x, m) \n d = Add(k, c) \n y = Mul(d, row)", ["MatMul", "Add"]),
        ("c = MatMul(x, m) \n d = Add(c, k) \n e = Div(d, one) \n y = Sub(e, row)", ["MatMul", "Add"]),
        ("c = MatMul(x, m) \n d = Mul(c, row) \n y = Add(d, k)", ["MatMul", "Add"]),
    ],
)
def test_after_matmul(body: str, left: list[str]) -> None:
    proto = build(f"g (float[2,3,4] x) => (float[2,3,6] y) {{ {body} }}", **MATMUL)
    model, _ = apply(change, proto, {"x": random(2, 3, 4)}, tolerance=TOLERANCE)
    assert ops(model) == left
    assert model.graph[-1].outputs[0].name == "y"


def test_product_of_two_activations_is_no_layer() -> None:
    text = "g (float[3,4] x, float[4,3] z) => (float[3,3] y) { c = MatMul(x, z) \n y = Mul(c, one) }"
    model, _ = apply(change, build(text, one=np.float32(2)), {"x": random(3, 4), "z": random(4, 3)})
    assert ops(model) == ["MatMul", "Mul"]


def test_weight_shared_by_two_layers_is_copied() -> None:
    text = (
        "g (float[3,4] x) => (float[3,6] y, float[3,6] z) { c = MatMul(x, m) \n y = Mul(c, row) \n z = MatMul(x, m) }"
    )
    model, _ = apply(change, build(text, m=MATMUL["m"], row=MATMUL["row"]), {"x": random(3, 4)}, tolerance=TOLERANCE)
    assert ops(model) == ["MatMul", "MatMul"]
    np.testing.assert_array_equal(np.asarray(model.graph.initializers["m"].const_value), MATMUL["m"])


def test_layer_outside_the_branch() -> None:
    text = """g (float[3,4] x, float[3,4] z, bool q) => (float[3,6] y) {
        c = MatMul(x, m)
        y = If (q) <then_branch = a () => (float[3,6] p) { p = Mul(c, one) },
                    else_branch = b () => (float[3,6] o) { o = MatMul(z, m) }> }"""
    model, notes = apply(
        change,
        build(text, m=MATMUL["m"], one=np.float32(2)),
        {"x": random(3, 4), "z": random(3, 4), "q": np.array(True)},
    )
    assert "Mul" in ops(model)
    assert "another graph" in notes[0].message


def test_a_product_that_is_scaled_is_still_found_by_its_name() -> None:
    text = "g (float[4,8] x) => (float[4,6] y) { [layer] p = MatMul(x, m) \n a = Add(p, k) \n y = Mul(a, k) }"
    weights = {"m": random(8, 6), "k": random(6, seed=1)}
    model, _ = apply(change, build(text, **weights), {"x": random(4, 8)}, tolerance=TOLERANCE)
    product = model.graph[0]
    assert (product.op_type, product.outputs[0].name != "p") == ("MatMul", True), "it has other numbers now"
    assert match(["p"], names_of(model))[0].nodes == {product.name}
