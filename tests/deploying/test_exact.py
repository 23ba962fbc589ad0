"""Constants that a model given leaves float are quantized where a grid holds them as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxq
from tests.contract import infer, sqnr
from tests.models import build, f32, images


def source(constant: Any) -> onnx.ModelProto:
    return build(
        """(float[1, 4, 6, 6] x) => (float[1, 4, 6, 6] y) {
            xq = QuantizeLinear (x, s, z)
            xd = DequantizeLinear (xq, s, z)
            m = Max (xd, k)
            mq = QuantizeLinear (m, t, u)
            y = DequantizeLinear (mq, t, u)
        }""",
        s=f32(0.02),
        z=np.uint8(120),
        t=f32(0.015),
        u=np.uint8(20),
        k=f32(constant),
    )


@pytest.mark.parametrize("constant", [-0.2, 0.3, 0.0, [[[0.0]], [[1.0]], [[0.0]], [[1.0]]]])
def test_a_bound_does_not_keep_its_operator_float(constant: Any) -> None:
    model = source(constant)
    made = onnxq.deploy(model, backend="qnn")
    assert not made.plan.kept_float
    feeds = images(1, 4, 6, 6)
    got = infer(ir.serde.serialize_model(made.rendered()), feeds, optimize=False)["y"]
    assert sqnr(infer(model, feeds, optimize=False)["y"], got) > 60


def test_what_would_be_rounded_stays_float() -> None:
    made = onnxq.deploy(with_another(), backend="qnn")
    assert [(kept.op, kept.reason) for kept in made.plan.kept_float] == [
        ("Max", "tensor 'k' is not quantized in the model given")
    ]


def with_another() -> onnx.ModelProto:
    """A bound a channel, and an operator that is quantized all the same."""
    model = source([[[0.11]], [[0.237]], [[-0.9]], [[0.5003]]])
    model.graph.node[-1].output[0] = "n"
    more = build(
        """(float[1, 4, 6, 6] n) => (float[1, 4, 6, 6] y) {
            r = Neg (n)
            rq = QuantizeLinear (r, t, u)
            y = DequantizeLinear (rq, t, u)
        }"""
    )
    model.graph.node.extend(more.graph.node)
    return model
