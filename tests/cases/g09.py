"""Group 9: calibration data."""

from __future__ import annotations

import numpy as np
import onnx
from numpy.typing import NDArray

from tests.cases.case import Given, case
from tests.models import build, feeds_for, images, normal


def conv() -> onnx.ModelProto:
    return build(
        "(float[N, 3, H, W] x) => (float[N, 4, P, Q] y) { c = Conv (x, w)  y = Relu (c) }", w=normal(4, 3, 3, 3)
    )


def normalized_conv() -> onnx.ModelProto:
    """A model whose BatchNormalization remembers data of mean 0.5 and standard deviation 0.25."""
    return build(
        """(float[N, 3, 8, 8] x) => (float[N, 4, 6, 6] y) {
            n = BatchNormalization (x, ones, zeros, mean, var)
            y = Conv (n, w)
        }""",
        w=normal(4, 3, 3, 3),
        ones=np.ones(3, np.float32),
        zeros=np.zeros(3, np.float32),
        mean=np.full(3, 0.5, np.float32),
        var=np.full(3, 0.0625, np.float32),
    )


def pictures(low: float, high: float, samples: int = 6) -> list[dict[str, NDArray[np.float32]]]:
    rng = np.random.default_rng(3)
    return [{"x": rng.uniform(low, high, (1, 3, 8, 8)).astype(np.float32)} for _ in range(samples)]


@case("G9")
def nan_in_one_sample() -> Given:
    """A value of one sample is NaN: left out of the range."""
    feeds = images(1, 3, 8, 8)
    feeds[2]["x"][0, 1, 3, 3] = np.nan
    return Given(conv(), feeds)


@case("G9", refuse="[Nn]o (samples|data)")
def empty_reader() -> Given:
    """No samples at all: an error that says so."""
    return Given(conv(), [])


@case("G9", refuse="double|float64")
def float64_data() -> Given:
    """The data is float64: cast and said, or an error that says so."""
    return Given(conv(), [{"x": sample["x"].astype(np.float64)} for sample in images(1, 3, 8, 8)])


@case("G9")
def one_sample() -> Given:
    """One sample only."""
    return Given(conv(), images(1, 3, 8, 8, samples=1))


@case("G9")
def identical_samples() -> Given:
    """All samples are equal."""
    return Given(conv(), images(1, 3, 8, 8, samples=1) * 6)


@case("G9", refuse=r"\bx\b")
def hwc_for_chw() -> Given:
    """The data has its channels last, the model wants them first: an error that names the input."""
    model = build("(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) { y = Conv (x, w) }", w=normal(4, 3, 3, 3))
    return Given(model, images(1, 8, 8, 3))


@case("G9", refuse="'z'|: z|zz")
def missing_input() -> Given:
    """The data has no array for an input: an error that names it."""
    model = build(
        "(float[N, 4] x, float[N, 4] z) => (float[N, 4] y) { a = Add (x, z)  y = MatMul (a, w) }", w=normal(4, 4)
    )
    return Given(model, [{"x": sample["x"]} for sample in feeds_for(model, N=2)])


@case("G9")
def first_batch_wide_then_narrow() -> Given:
    """The first sample is 100 times wider than the others."""
    feeds = images(1, 3, 8, 8)
    for factor, sample in zip((100, 30, 1, 1, 0.1, 0.01), feeds, strict=True):
        sample["x"] *= np.float32(factor)
    return Given(conv(), feeds)
