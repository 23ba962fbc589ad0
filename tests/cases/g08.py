"""Group 8: numbers that are very large, very small, or none."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from tests.cases.case import Given, case
from tests.models import build, f32, images, normal


def two_layers(**changes: Any) -> onnx.ModelProto:
    constants = {"w": normal(4, 3, 3, 3), "b": normal(4, seed=1), "v": normal(4, 4, 3, 3, seed=2), **changes}
    return build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 4, 4] y) {
            [c1] c = Conv (x, w, b)
            r = Relu (c)
            [c2] y = Conv (r, v)
        }""",
        **constants,
    )


def channel_200(layers: int) -> tuple[onnx.ModelProto, list[dict[str, Any]]]:
    """MatMuls, the first of which has an input channel 200 times larger, its weights as much smaller."""
    weights: dict[str, Any] = {f"w{i}": normal(256, 256, seed=i, scale=1 / 16) for i in range(layers)}
    weights["w0"][3] /= 200
    tensors = ["x", *(f"h{i}" for i in range(1, layers)), "y"]
    body = " ".join(f"[mm{i}] {tensors[i + 1]} = MatMul ({tensors[i]}, w{i})" for i in range(layers))
    feeds = images(64, 256, samples=3)
    for sample in feeds:
        sample["x"][:, 3] *= 200
    return build(f"(float[64, 256] x) => (float[64, 256] y) {{ {body} }}", **weights), feeds


@case("G8", asked={"symmetric": True, "per_channel": True}, least=30)
def tiny_channel_bias_gemm_row(shape: tuple[int, ...] = (1, 4), scale: float = 1e-12) -> Given:
    """The same with a Gemm whose bias is a row."""
    w = normal(16, 4)
    w[:, 1] *= scale
    model = build(
        "(float[3, 16] x) => (float[3, 4] y) { y = Gemm (x, w, b) }", w=w, b=f32([5, 5, -5, 5]).reshape(shape)
    )
    return Given(model, images(3, 16))


@case("G8")
def infinite_values() -> Given:
    """The float model gives infinity for one sample."""
    model = build("(float[3, 16] x) => (float[3, 4] y) { a = Exp (x)  y = MatMul (a, w) }", w=normal(16, 4))
    feeds = images(3, 16)
    feeds[1]["x"][0, 0] = 200.0
    return Given(model, feeds)


@case("G8")
def tiny_and_huge_operand() -> Given:
    """Add of operands 1e15 times apart."""
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) {
            a = Conv (x, w)
            b = Conv (x, v)
            y = Add (a, b)
        }""",
        w=normal(4, 3, 3, 3),
        v=normal(4, 3, 3, 3, seed=1) * f32(1e-15),
    )
    return Given(model, images(1, 3, 8, 8))


@case("G8")
def zero_activation() -> Given:
    """A layer gives nothing but zeros: a finite scale."""
    # Relu gives nothing but zeros
    model = two_layers(w=f32(np.zeros((4, 3, 3, 3))), b=f32(np.full(4, -1)))
    return Given(model, images(1, 3, 8, 8))


@case("G8", asked={"range": "entropy"})
def zero_activation_entropy() -> Given:
    """The same, calibrated with the entropy method."""
    return zero_activation()


@case("G8", asked={"symmetric": True, "per_channel": True}, least=30)
def tiny_channel_big_bias() -> Given:
    """One channel has weights 1e12 times smaller and a bias of 5: the bias is kept."""
    w = normal(4, 3, 3, 3)
    w[2] *= 1e-12
    model = build("(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) { y = Conv (x, w, b) }", w=w, b=f32([5, 5, 5, 5]))
    return Given(model, images(1, 3, 8, 8))


@case("G8", least=None)
def inf_weight(value: float = np.inf) -> Given:
    """A weight is infinite: that layer stays float, and is named."""
    w = normal(4, 3, 3, 3)
    w[0, 0, 0, 0] = value
    return Given(two_layers(w=w), images(1, 3, 8, 8))


@case("G8", median=10, say="median")
def one_outlier_1e6() -> Given:
    """One value of one sample is 1e6, and the ratio over all samples is all outlier: the loss of the others is said."""
    feeds = images(1, 3, 8, 8, samples=8)
    feeds[5]["x"][0, 0, 0, 0] = 1e6
    return Given(two_layers(), feeds)


@case("G8")
def zero_weights() -> Given:
    """A layer and a channel of another have no weights but zeros."""
    w = normal(4, 3, 3, 3)
    w[1] = 0
    return Given(two_layers(w=w, v=f32(np.zeros((4, 4, 3, 3)))), images(1, 3, 8, 8))


@case("G8")
def constant_activation() -> Given:
    """The data is one number, 1e20."""
    feeds = [{"x": np.full((1, 3, 8, 8), 1e20, np.float32)} for _ in range(3)]
    return Given(two_layers(b=f32(np.zeros(4))), feeds)


@case("G8", say="below the floor")
def one_input_channel_200_times_larger() -> Given:
    """One channel of the input is 200 times larger: with 8 bits the result has 1 dB, and that is said or avoided."""
    model, feeds = channel_200(layers=3)
    return Given(model, feeds)
