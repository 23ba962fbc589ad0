"""Batch normalizations alone as depthwise convolutions."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import onnxq
from onnxq import Options
from onnxq.graph.files.load import load
from onnxq.graph.passes.lone_norms import lone_norms
from onnxq.graph.shapes import infer_shapes
from tests.contract import infer
from tests.models import build, f32, images, normal, verified_sqnr

BODY = """[first] y = BatchNormalization <epsilon = 0.001%s> (x, gamma, beta, mean, variance)
          z = Relu (y)"""


def net(shape: str, more: str = "") -> ir.Model:
    proto = build(
        f"({shape} x) => ({shape} z) {{ {BODY % more} }}",
        gamma=f32([1.0, -2.0, 0.5]),
        beta=f32([0.0, 3.0, -1.0]),
        mean=f32([5.0, 0.0, -7.0]),
        variance=f32([4.0, 0.0, 100.0]),
    )
    model = load(proto)
    infer_shapes(model)
    return model


@pytest.mark.parametrize("sizes", [(2, 3, 5), (2, 3, 4, 6)])
def test_it_computes_the_same(sizes: tuple[int, ...]) -> None:
    model = net(f"float[{', '.join(map(str, sizes))}]")
    before = ir.to_proto(model)
    assert lone_norms(model)
    assert [node.op_type for node in model.graph] == ["Conv", "Relu"]
    conv = model.graph[0]
    assert conv.name == "first" and conv.outputs[0].name == "y"
    feeds = images(*sizes, samples=3)
    then, now = (infer(proto, feeds, optimize=False)["z"] for proto in (before, ir.to_proto(model)))
    np.testing.assert_allclose(now, then, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "more"),
    [("float[2, 3]", ""), ("float[2, 3, 2, 2, 2]", ""), ("float[2, 3, 4]", ", training_mode = 1")],
)
def test_others_stay(shape: str, more: str) -> None:
    model = net(shape, more)
    assert not lone_norms(model)
    assert model.graph[0].op_type == "BatchNormalization"


@pytest.mark.parametrize("backend", ["qnn", "rknn", "snpe", "tengine", "vitis"])
def test_a_net_that_normalizes_first_is_in_integers_throughout(backend: str) -> None:
    """As DenseNet's layers and residual nets of the second kind are built: the normalization can fold into nothing."""
    model = build(
        """(float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] z) {
            a = Conv <pads = [1, 1, 1, 1]> (x, w)
            [norm] n = BatchNormalization (a, gamma, beta, mean, variance)
            r = Relu (n)
            b = Conv <pads = [1, 1, 1, 1]> (r, v)
            z = Add (a, b)
        }""",
        w=normal(4, 4, 3, 3),
        v=normal(4, 4, 3, 3, seed=1),
        gamma=f32([1, 2, 0.5, 1]),
        beta=f32([0, 1, -1, 0]),
        mean=f32([0, 1, 0, -1]),
        variance=f32([1, 4, 9, 2]),
    )
    feeds = images(1, 4, 8, 8, samples=8)
    made = onnxq.quantize(model, feeds, backend=backend)
    assert not made.plan.kept_float and made.plan.quantized["norm"] == "Conv"
    assert verified_sqnr(made) > 25
    left = onnxq.quantize(model, feeds, backend=backend, options=Options(exclude=("BatchNormalization",)))
    assert next(kept.op for kept in left.plan.kept_float) == "BatchNormalization"
