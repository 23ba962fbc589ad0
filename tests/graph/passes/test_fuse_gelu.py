from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from onnxq.graph.note import Note
from onnxq.graph.passes.fuse_gelu import fuse_gelu
from onnxq.graph.shapes import infer_shapes
from onnxq.graph.traverse import all_nodes
from onnxq.options.patterns import match, names_of
from tests.graph.helpers import apply, build, ops, random, twice
from tests.graph.recognition.test_groups import ACTIVATIONS, CONSTANTS

FEEDS = {"u": 3 * random(2, 3, 8)}


def fuse(model: ir.Model) -> list[Note]:
    infer_shapes(model)
    return fuse_gelu(model)


def fused(body: str, opset: int = 20) -> ir.Model:
    text = f"g (float[n,3,8] u) => (float[n,3,8] y) {{ x = Neg(u) \n {body} \n y = Abs(t) }}"
    return apply(fuse, build(text, opset=opset, ir_version=9, **CONSTANTS), FEEDS, tolerance=2e-6)[0]


@pytest.mark.parametrize("body", ACTIVATIONS["gelu"][:-1])
def test_both_forms_become_the_operator(body: str) -> None:
    model = fused(body)
    assert ops(model) == ["Neg", "Gelu", "Abs"]
    node = next(n for n in all_nodes(model) if n.op_type == "Gelu")
    assert node.attributes.get_string("approximate") == ("none" if "Erf" in body else "tanh")
    assert (node.inputs[0].name, node.outputs[0].name) == ("x", "t")  # type: ignore[union-attr]


def test_what_names_the_chain_names_the_operator() -> None:
    model = fused(ACTIVATIONS["gelu"][0])
    gelu = next(node for node in all_nodes(model) if node.op_type == "Gelu")
    gelu.name = "g"
    names = names_of(model)
    for pattern in ("Erf", "Erf*", "e", "Gelu"):
        (found,) = match([pattern], names)
        assert found.nodes == {"g"}


@pytest.mark.parametrize(
    "body",
    [
        ACTIVATIONS["gelu"][-1],  # x sigmoid(1.702 x)
        ACTIVATIONS["silu"][0],
        "a = Div(x, root2) \n e = Erf(a) \n p = Add(e, one) \n m = Mul(x, p) \n t = Mul(m, quick)",
    ],
)
def test_other_functions_stay(body: str) -> None:
    assert "Gelu" not in ops(fused(body))


def test_older_opsets_have_no_such_operator() -> None:
    assert "Gelu" not in ops(fused(ACTIVATIONS["gelu"][0], opset=19))


def test_a_tensor_read_elsewhere_keeps_the_chain() -> None:
    model = fused(
        "a = Div(x, root2) \n e = Erf(a) \n p = Add(e, one) \n m = Mul(x, p) \n t0 = Mul(m, half) \n t = Add(t0, e)"
    )
    assert "Gelu" not in ops(model)


def test_a_constant_that_adds_axes_keeps_the_chain() -> None:
    proto = build(
        "g (float[8] u) => (float[1,8] y) { a = Div(u, root2) \n e = Erf(a) \n p = Add(e, wide) \n "
        "m = Mul(u, p) \n y = Mul(m, half) }",
        opset=20,
        ir_version=9,
        **CONSTANTS,
        wide=np.ones((1, 1), np.float32),
    )
    assert "Gelu" not in ops(apply(fuse, proto, {"u": random(8)})[0])


def test_one_behind_another() -> None:
    assert ops(fused(twice(ACTIVATIONS["gelu"][0]))) == ["Neg", "Gelu", "Gelu", "Abs"]
