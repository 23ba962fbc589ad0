"""Group 10: what algorithms do to odd layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from tests.cases.case import Given, case
from tests.models import build, f32, feeds_for, images, normal

NOT_OFFERED = "quantize_static has no such algorithm without another package"


def normalized(**changes: Any) -> onnx.ModelProto:
    """A Conv and a BatchNormalization; ``changes`` replaces its constants."""
    constants: dict[str, Any] = {
        "gamma": np.ones(4, np.float32),
        "beta": normal(4, seed=1),
        "mean": normal(4, seed=2, scale=0.1),
        "var": f32([0.5, 1, 2, 4]),
        **changes,
    }
    return build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) {
            [c] h = Conv (x, w)
            [bn] y = BatchNormalization (h, gamma, beta, mean, var)
        }""",
        w=normal(4, 3, 3, 3),
        **constants,
    )


@case("G10", asked={"per_channel": True}, least=28)
def batchnorm_gamma_zero() -> Given:
    """BatchNormalization that multiplies a channel with 0: folded exactly."""
    return Given(normalized(gamma=f32([1, 0, 0.5, 2])), images(1, 3, 8, 8))


@case("G10", asked={"per_channel": True}, least=28)
def batchnorm_var_zero() -> Given:
    """BatchNormalization with a variance of 0: folded exactly, by its epsilon."""
    return Given(normalized(var=f32([1, 0, 0.5, 2])), images(1, 3, 8, 8))


@case("G10", asked={"per_channel": True}, least=None)
def batchnorm_var_negative() -> Given:
    """BatchNormalization with a variance below 0, whose channel is NaN: not folded into other channels."""
    return Given(normalized(var=f32([1, -1, 0.5, 2])), images(1, 3, 8, 8))


@case("G10", asked={"algorithms": ("equalize",)}, theirs=NOT_OFFERED)
def equalize_over_relu6() -> Given:
    """Equalization of two Convs with a Clip at 6 between them: not scaled through."""
    w = normal(4, 3, 3, 3)
    w[1] *= 100
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 4, 4] y) {
            [c1] a = Conv (x, w)
            r = Clip (a, low, high)
            [c2] y = Conv (r, v)
        }""",
        w=w,
        v=normal(4, 4, 3, 3, seed=2),
        low=f32(0),
        high=f32(6),
    )
    return Given(model, images(1, 3, 8, 8))


@case("G10", asked={"algorithms": ("smoothquant",)}, theirs=NOT_OFFERED)
def smoothquant_of_dead_channels() -> Given:
    """Smoothing where a row of the weight and a channel of the data are zero."""
    w = normal(16, 8)
    w[3] = 0
    model = build(
        """(float[N, 16] x) => (float[N, 8] y) {
            n = LayerNormalization (x, gain)
            k = Mul (n, mask)
            [m] y = MatMul (k, w)
        }""",
        w=w,
        gain=np.ones(16, np.float32),
        mask=f32([*[1] * 15, 0]),
    )
    return Given(model, feeds_for(model, N=4))


@case("G10", asked={"weight_bits": 4, "algorithms": ("gptq",)}, least=8, theirs=NOT_OFFERED)
def gptq_of_few_rows() -> Given:
    """GPTQ with fewer rows of data than inputs, a zero column and two equal ones."""
    model = build("(float[N, 32] x) => (float[N, 8] y) { [m] y = MatMul (x, w) }", w=normal(32, 8))
    feeds = feeds_for(model, N=2, samples=3)
    for sample in feeds:
        sample["x"][:, 5] = 0
        sample["x"][:, 7] = sample["x"][:, 8]
    return Given(model, feeds)
