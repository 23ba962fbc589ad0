from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from onnxq.graph.note import Note
from onnxq.graph.passes.fuse_layernorm import fuse_layernorm
from onnxq.graph.shapes import infer_shapes
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import constant_array
from tests.graph.helpers import Array, apply, build, ops, random, twice
from tests.graph.recognition.test_groups import CONSTANTS, NORMALIZATIONS
from tests.models import f32, i64

FEEDS = {"u": (0.02 * random(2, 3, 8, seed=1)).astype(np.float32)}
"""Small enough for the epsilon of 1e-5 to count."""


def fuse(model: ir.Model) -> list[Note]:
    infer_shapes(model)
    return fuse_layernorm(model)


def fused(body: str, opset: int = 18, **constants: Array) -> ir.Model:
    text = f"g (float[n,3,8] u) => (float[n,3,8] y) {{ x = Neg(u) \n {body} \n y = Abs(t) }}"
    return apply(fuse, build(text, opset=opset, **{**CONSTANTS, **constants}), FEEDS, tolerance=1e-5)[0]


@pytest.mark.parametrize("body", NORMALIZATIONS["layernorm"])
def test_all_orders_become_the_operator(body: str) -> None:
    model = fused(body)
    assert ops(model) == ["Neg", "LayerNormalization", "Abs"]
    node = next(n for n in all_nodes(model) if n.op_type == "LayerNormalization")
    assert (node.inputs[0].name, node.outputs[0].name) == ("x", "t")  # type: ignore[union-attr]
    assert node.attributes.get_float("epsilon") == pytest.approx(float(CONSTANTS["eps"]), rel=1e-6)


def test_scale_and_bias_are_those_of_the_chain() -> None:
    gamma, beta = random(8, seed=2), random(8, seed=3)
    model = fused(NORMALIZATIONS["layernorm"][0], gamma=gamma, beta=beta)
    node = next(n for n in all_nodes(model) if n.op_type == "LayerNormalization")
    for value, expected in zip(node.inputs[1:], (gamma, beta), strict=True):
        found = constant_array(value)
        assert found is not None
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("body", [*NORMALIZATIONS["rmsnorm"], *NORMALIZATIONS["softmax"]])
def test_other_groups_stay(body: str) -> None:
    assert "LayerNormalization" not in ops(fused(body))


def test_statistics_over_other_axes_stay() -> None:
    text = (
        "g (float[2,3,8] u) => (float[2,3,8] y) { m = ReduceMean(u, axes) \n d = Sub(u, m) \n q = Mul(d, d) \n "
        "v = ReduceMean(q, axes) \n e = Add(v, eps) \n r = Sqrt(e) \n y = Div(d, r) }"
    )
    proto = build(text, opset=18, axes=i64([1]), eps=f32(1e-5))
    assert "LayerNormalization" not in ops(apply(fuse, proto, FEEDS)[0])


def test_a_scale_that_varies_over_more_axes_stays_behind() -> None:
    body = NORMALIZATIONS["layernorm"][0]
    model = fused(body, gamma=random(3, 8, seed=4))
    assert "LayerNormalization" not in ops(model) or "Mul" in ops(model)


def test_older_opsets_have_no_such_operator() -> None:
    text = (
        "g (float[2,3,8] u) => (float[2,3,8] y) { m = ReduceMean<axes = [-1]>(u) \n d = Sub(u, m) \n q = Mul(d, d) \n "
        "v = ReduceMean<axes = [-1]>(q) \n e = Add(v, eps) \n r = Sqrt(e) \n y = Div(d, r) }"
    )
    for opset, there in ((16, False), (17, True)):
        model, _ = apply(fuse, build(text, opset=opset, eps=f32(1e-5)), FEEDS, tolerance=1e-5)
        assert ("LayerNormalization" in ops(model)) is there


def test_one_behind_another() -> None:
    assert ops(fused(twice(NORMALIZATIONS["layernorm"][1]))).count("LayerNormalization") == 2
