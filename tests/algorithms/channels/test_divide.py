"""Dividing the channels of a tensor in what makes it: what comes out is what numpy divides."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray
from onnx import helper

from onnxq.algorithms.channels.divide import Divisor, divide
from onnxq.graph.files.load import load
from onnxq.graph.files.save import to_proto
from onnxq.graph.layer import Refusal
from onnxq.graph.lookup import Lookup
from onnxq.graph.recognition.groups import find_groups
from onnxq.graph.shapes import infer_shapes
from tests.contract import infer
from tests.models import build, f32, feeds_for, normal

C = 8
SCALE = np.geomspace(0.1, 10, C)
VECTORS: dict[str, NDArray[Any]] = {
    "g": normal(C, seed=3, scale=1) + np.float32(2),
    "h": normal(C, seed=4, scale=1),
    "w": normal(C, C),
    "k": normal(C, C, 3, 3),
    "stack": normal(2, C, C, scale=0.3),
    "maps": (normal(C, seed=5, scale=1) + np.float32(3)).reshape(C, 1, 1),
    "double": np.full(C, 2.0),
    "two": np.array([[2.0, 3.0]], np.float32),
}


def tokens(body: str, inputs: str = "float[2, 5, 8] x", opset: int = 17) -> onnx.ModelProto:
    """A model that gives t of (2, 5, C), channels last."""
    used: dict[str, Any] = {name: VECTORS[name] for name in sorted(set(re.findall(r"\w+", body)) & VECTORS.keys())}
    return build(f"({inputs}) => (float[2, 5, 8] y) {{ {body}  y = Abs (t) }}", opset=opset, **used)


def maps(body: str) -> onnx.ModelProto:
    """The same of (2, C, 6, 6), channels first."""
    used: dict[str, Any] = {name: VECTORS[name] for name in sorted(set(re.findall(r"\w+", body)) & VECTORS.keys())}
    return build(f"(float[2, 8, 6, 6] x) => (float[2, 8, 6, 6] y) {{ {body}  y = Abs (t) }}", **used)


def loaded(proto: onnx.ModelProto) -> ir.Model:
    """With names for all nodes, and shapes, as a normalized model has them."""
    model = load(proto)
    infer_shapes(model)
    for i, node in enumerate(model.graph):
        node.name = f"n{i}"
    return model


def values(model: onnx.ModelProto, feeds: Any) -> dict[str, list[NDArray[Any]]]:
    """Every output, and t."""
    more = onnx.ModelProto()
    more.CopyFrom(model)
    more.graph.output.append(helper.make_tensor_value_info("t", onnx.TensorProto.FLOAT, None))
    return infer(more, feeds, optimize=False)


@pytest.mark.parametrize(
    ("body", "axis"),
    [
        ("n = LayerNormalization (x, g, h)  t = Relu (n)", -1),
        ("t = LayerNormalization (x, g)", -1),
        ("n = MatMul (x, w)  t = Add (n, h)", -1),
        ("t = MatMul (x, w)", -1),
        ("s = Sigmoid (x)  t = Mul (s, g)", -1),
        ("s = Sigmoid (x)  t = Div (s, g)", -1),
        ("n = LayerNormalization (x, g)  s = Sigmoid (x)  t = Mul (s, n)", -1),
        ("n = LayerNormalization (x, g)  a = Add (n, h)  l = LeakyRelu (a)  t = Identity (l)", -1),
        ("n = LayerNormalization (x, g)  a = Sub (h, n)  t = Relu (a)", -1),
        ("c = Conv <pads = [1, 1, 1, 1]> (x, k, h)  t = Relu (c)", 1),
        ("t = InstanceNormalization (x, g, h)", 1),
        ("s = Sigmoid (x)  t = Mul (s, maps)", 1),
    ],
)
def test_the_tensor_is_divided_and_nothing_else(body: str, axis: int) -> None:
    proto = tokens(body) if axis == -1 else maps(body)
    feeds = feeds_for(proto, samples=2)
    model = loaded(proto)
    tensor = next(v for node in model.graph for v in node.outputs if v.name == "t")
    found = Divisor(model).division(tensor, C, axis)
    divide(Lookup(model), found, SCALE, axis)
    before, after = values(proto, feeds), values(to_proto(model), feeds)
    shape = (C,) if axis == -1 else (C, 1, 1)
    for want, got in zip(before["t"], after["t"], strict=True):
        np.testing.assert_allclose(got, want / SCALE.reshape(shape), rtol=2e-5, atol=1e-6)
    assert found.layers or found.constants
    assert "t" in found.changed


@pytest.mark.parametrize(
    ("body", "axis", "reason"),
    [
        ("t = Exp (x)", -1, "after Exp"),
        ("t = Add (x, x)", -1, "after Add"),
        ("s = Exp (x)  t = Div (g, s)", -1, "after Div"),
        ("n = LayerNormalization (x, g)  r = Relu (n)  t = Mul (n, r)", -1, "after Mul"),
        ("t = LayerNormalization <axis = 1> (x, many)", -1, "over several axes|whose scale is not constant"),
        ("n = MatMul (x, w)  e = Exp (n)  t = Add (n, h)  z = Neg (e)", -1, "read elsewhere, too"),
        ("n = Relu (x)  t = Add (n, h)", -1, "a model input"),
        ("n = InstanceNormalization (x, g, h)  t = Relu (n)", -1, "channels on different axes"),
    ],
)
def test_what_cannot_be_divided_says_why(body: str, axis: int, reason: str) -> None:
    proto = tokens(body)
    if "many" in body:
        proto.graph.initializer.append(onnx.numpy_helper.from_array(f32(np.ones((5, C))), "many"))
    model = loaded(proto)
    assert len(find_groups(model)) == 0
    tensor = next(v for node in model.graph for v in node.outputs if v.name == "t")
    with pytest.raises(Refusal, match=reason):
        Divisor(model).division(tensor, C, axis)


def test_a_shared_weight_and_a_graph_output_are_not_divided() -> None:
    shared = build(
        "(float[2, 5, 8] x) => (float[2, 5, 8] y, float[2, 5, 8] z) {"
        " t = MatMul (x, w)  y = Abs (t)  z = MatMul (x, w) }",
        w=VECTORS["w"],
    )
    output = build("(float[2, 5, 8] x) => (float[2, 5, 8] t) { t = MatMul (x, w) }", w=VECTORS["w"])
    for proto, reason in ((shared, "shared weights"), (output, "a model output")):
        model = loaded(proto)
        tensor = next(v for node in model.graph for v in node.outputs if v.name == "t")
        with pytest.raises(Refusal, match=reason):
            Divisor(model).division(tensor, C, -1)
