"""Constants that a model given leaves float are quantized where a grid holds them as they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxq
from onnxq.deploying.exact import hold_exact_constants
from onnxq.plan import Plan, Site
from onnxq.qparams import QParams
from onnxq.spec import QuantSpec
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


def test_numbers_that_are_there_and_grids_in_common_stay_as_they_are() -> None:
    model = ir.from_proto(build("(float[2] x) => (float[2] y) { y = Max (x, k) }", k=f32([0, 0.3])))
    spec = QuantSpec(signed=False, symmetric=False)
    free, tied = Site("k", "k", "constant", spec, ()), Site("k#2", "k", "constant", spec, (), tied_to="x")
    root = Site("x", "x", "activation", spec, ())
    coarse = QParams(spec, np.float32(0.1).reshape(()), np.int64(0).reshape(()))
    for sites, given in (((free,), {"k": coarse}), ((root, tied), {}), ((replace(root, tied_to="k"), free), {})):
        numbers = dict(given)
        hold_exact_constants(model, Plan("any", sites, {}), numbers)
        assert numbers == given
    made: dict[str, QParams] = {}
    hold_exact_constants(model, Plan("any", (free, root), {}), made)
    assert made.keys() == {"k"} and made["k"].scale == pytest.approx(0.3 / 255)


def test_a_normalization_alone_is_a_convolution_in_integers() -> None:
    """Of one number a channel, which a scale a channel holds."""
    model = build(
        """(float[1, 4, 6, 6] x) => (float[1, 4, 6, 6] y) {
            xq = QuantizeLinear (x, s, z)
            xd = DequantizeLinear (xq, s, z)
            n = BatchNormalization (xd, gamma, beta, mean, variance)
            r = Relu (n)
            rq = QuantizeLinear (r, t, u)
            y = DequantizeLinear (rq, t, u)
        }""",
        s=f32(0.02),
        z=np.uint8(120),
        t=f32(0.015),
        u=np.uint8(0),
        gamma=f32([1.0, -0.7, 0.3, 0.0]),
        beta=f32([0.0, 0.5, 1.0, 0.25]),
        mean=f32([0.1, 0.0, -0.3, 2.0]),
        variance=f32([1.0, 0.5, 3.0, 1.0]),
    )
    made = onnxq.deploy(model, backend="qnn")
    assert not made.plan.kept_float and "Conv" in made.plan.quantized.values()
    feeds = images(1, 4, 6, 6)
    got = infer(ir.serde.serialize_model(made.rendered()), feeds, optimize=False)["y"]
    assert sqnr(infer(model, feeds, optimize=False)["y"], got) > 60
