"""Group 5: tensors with several readers, and equal tensors under several names."""

from __future__ import annotations

import numpy as np
import onnx

from tests.cases.case import Given, case
from tests.models import build, f32, feeds_for, images, normal


def two_convs() -> onnx.ModelProto:
    return build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y, float[1, 4, 6, 6] z) {
            [c1] y = Conv (x, w, b)
            ten = Mul (x, k)
            [c2] z = Conv (ten, w, b)
        }""",
        w=normal(4, 3, 3, 3),
        b=normal(4, seed=1),
        k=f32(10),
    )


@case("G5", asked={"exclude": ("c1",)})
def exclude_one_node_shared_weight() -> Given:
    """A weight shared by an excluded layer: that one reads the float weight."""
    model = build(
        """(float[1, 16, 8, 8] x) => (float[1, 32, 6, 6] y, float[1, 32, 6, 6] z) {
            [c1] y = Conv (x, w)
            [c2] z = Conv (x, w)
        }""",
        w=normal(32, 16, 3, 3),
    )
    return Given(model, images(1, 16, 8, 8))


@case("G5")
def tied_embedding() -> Given:
    """Gather and, transposed, MatMul read one table."""
    model = build(
        """(int64[N] ids) => (float[N, 12] logits) {
            [g] x = Gather (table, ids)
            [h] a = MatMul (x, w)
            t = Transpose <perm = [1, 0]> (table)
            [head] logits = MatMul (a, t)
        }""",
        table=normal(12, 8, scale=1),
        w=normal(8, 8),
    )
    feeds = [{"ids": np.arange(12)[i:]} for i in range(4)]
    return Given(model, feeds)


@case("G5")
def shared_weight_and_residual() -> Given:
    """Two MatMuls share a weight, their input has a residual reader."""
    model = build(
        """(float[N, 8] x) => (float[N, 8] y) {
            a = MatMul (x, w)
            b = MatMul (a, w)
            s = Add (b, x)
            y = Relu (s)
        }""",
        w=normal(8, 8),
    )
    return Given(model, feeds_for(model, N=4))


@case("G5")
def bias_is_also_a_weight() -> Given:
    """One constant is the bias of one layer and the weight of the next."""
    model = build(
        """(float[N, 4] x) => (float[N, 1] y) {
            h = Gemm (x, w, b)
            y = Gemm <transB = 1> (h, b)
        }""",
        w=normal(4, 4),
        b=f32([[0.5, -1, 2, 0.1]]),
    )
    return Given(model, feeds_for(model, N=4))


@case("G5")
def operand_and_bias() -> Given:
    """One constant is a bias and an operand of Mul."""
    model = build(
        """(float[N, 4] x) => (float[N, 4] y) {
            h = Gemm (x, w, b)
            y = Mul (h, b)
        }""",
        w=normal(4, 4),
        b=f32([0.5, -1, 2, 0.1]),
    )
    return Given(model, feeds_for(model, N=4))


@case("G5")
def operand_and_weight() -> Given:
    """One constant is a weight and an operand of Add and Sub."""
    model = build(
        """(float[4, 4] x) => (float[4, 4] y) {
            h = MatMul (x, w)
            s = Add (h, w)
            y = Sub (s, w)
        }""",
        w=normal(4, 4),
    )
    return Given(model, feeds_for(model))


@case("G5")
def read_by_integers_and_floats() -> Given:
    """A tensor has an integer and a float reader."""
    model = build(
        """(float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y, float[1, 4, 8, 8] z) {
            a = Conv <pads = [1, 1, 1, 1]> (x, w)
            y = Conv <pads = [1, 1, 1, 1]> (a, w)
            z = Erf (a)
        }""",
        w=normal(4, 4, 3, 3),
    )
    return Given(model, images(1, 4, 8, 8))


@case("G5")
def weight_computed_from_a_shared_one() -> Given:
    """A weight is computed from another weight: folded."""
    model = build(
        """(float[N, 8] x) => (float[N, 8] y) {
            m = ReduceMean <keepdims = 0> (w)
            c = Sub (w, m)
            h = MatMul (x, c)
            y = MatMul (h, w)
        }""",
        w=normal(8, 8),
    )
    return Given(model, feeds_for(model, N=4))


@case("G5")
def shared_bias_two_convs() -> Given:
    """Two Convs with different scales share a weight and a bias: two integer biases."""
    return Given(two_convs(), images(1, 3, 8, 8))


@case("G5")
def same_weight_in_gemms_of_both_orientations() -> Given:
    """One weight in Gemm and, transposed, in Gemm: never a scale along the wrong axis."""
    w = normal(8, 8)
    w[3] *= 100  # makes a scale along the wrong axis show
    model = build(
        """(float[N, 8] x) => (float[N, 8] y, float[N, 8] z) {
            [a] y = Gemm (x, w)
            [b] z = Gemm <transB = 1> (x, w)
        }""",
        w=w,
    )
    return Given(model, feeds_for(model, N=4))
