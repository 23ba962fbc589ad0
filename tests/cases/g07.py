"""Group 7: what is special about single operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from tests.cases.case import Given, case
from tests.models import build, f32, images, normal

FLT_MIN = float(np.finfo(np.float32).min)


def attention(mask: str = "") -> str:
    return f"""(float[2, 5, 8] x) => (float[2, 5, 8] y) {{
        q = MatMul (x, wq)
        k = MatMul (x, wk)
        v = MatMul (x, wv)
        kt = Transpose <perm = [0, 2, 1]> (k)
        s = MatMul (q, kt)
        {"m = Add (s, mask)" if mask else "m = Identity (s)"}
        p = Softmax <axis = -1> (m)
        o = MatMul (p, v)
        y = MatMul (o, wo)
    }}"""


def attention_weights() -> dict[str, Any]:
    return {name: normal(8, 8, seed=i, scale=0.35) for i, name in enumerate(("wq", "wk", "wv", "wo"))}


def masked_attention(filler: float) -> onnx.ModelProto:
    """Large enough for integers to be faster, with a causal mask."""
    weights: dict[str, Any] = {
        name: normal(64, 64, seed=i, scale=0.125) for i, name in enumerate(("wq", "wk", "wv", "wo"))
    }
    mask = np.triu(np.full((48, 48), filler, np.float32), 1)
    return build(attention("mask").replace("[2, 5, 8]", "[1, 48, 64]"), mask=mask, **weights)


@case("G7")
def convtranspose_between_convs() -> Given:
    """ConvTranspose between two Convs."""
    model = build(
        """(float[1, 4, 6, 6] x) => (float[1, 4, 12, 12] y) {
            a = Conv <pads = [1, 1, 1, 1]> (x, w1)
            t = ConvTranspose <strides = [2, 2], kernel_shape = [2, 2]> (a, w2)
            r = Relu (t)
            y = Conv <pads = [1, 1, 1, 1]> (r, w3)
        }""",
        w1=normal(4, 4, 3, 3),
        w2=normal(4, 4, 2, 2, seed=1),
        w3=normal(4, 4, 3, 3, seed=2),
    )
    return Given(model, images(1, 4, 6, 6))


@case("G7")
def gemm_bias(shape: tuple[int, ...] = (3, 1)) -> Given:
    """Gemm whose bias has one value per row: it stays float."""
    model = build(
        "(float[3, 16] x) => (float[3, 8] y) { [g] y = Gemm (x, w, b) }", w=normal(16, 8), b=normal(*shape, seed=1)
    )
    return Given(model, images(3, 16))


@case("G7")
def gemm_alpha2(alpha: float = 2.0, beta: float = 1.0) -> Given:
    """Gemm with alpha and beta: equal numbers with graph optimizations on and off."""
    model = build(
        f"(float[3, 16] x) => (float[3, 8] y) {{ y = Gemm <alpha = {alpha}, beta = {beta}> (x, w, b) }}",
        w=normal(16, 8),
        b=normal(8, seed=1),
    )
    return Given(model, images(3, 16))


@case("G7")
def gemm_trans_a() -> Given:
    """Gemm with transA."""
    model = build("(float[16, 3] x) => (float[3, 8] y) { y = Gemm <transA = 1> (x, w) }", w=normal(16, 8))
    return Given(model, images(16, 3))


@case("G7", asked={"per_channel": True})
def matmul_3d_weight() -> Given:
    """A weight of three dimensions, per channel asked for."""
    model = build("(float[2, 5, 8] x) => (float[2, 5, 6] y) { y = MatMul (x, w) }", w=normal(2, 8, 6, scale=0.3))
    return Given(model, images(2, 5, 8))


@case("G7")
def matmul_weight_on_the_left() -> Given:
    """The weight is the first operand of MatMul."""
    model = build("(float[8, 5] x) => (float[6, 5] y) { y = MatMul (w, x) }", w=normal(6, 8, scale=0.3))
    return Given(model, images(8, 5))


@case("G7")
def attention_dynamic_matmul_softmax() -> Given:
    """MatMuls of two activations around a Softmax."""
    model = build(attention(), **attention_weights())
    return Given(model, images(2, 5, 8))


@case("G7")
def softmax_mask_fltmin(filler: float = FLT_MIN) -> Given:
    """A causal mask of the lowest float: it is no part of the range."""
    model = masked_attention(filler)
    return Given(model, images(1, 48, 64, samples=3))


@case("G7", asked={"symmetric": True})
def relu_symmetric_int8() -> Given:
    """Relu before symmetric activations: it is not dropped."""
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 4, 4] y) {
            a = Conv (x, w)
            r = Relu (a)
            y = Conv (r, w2)
        }""",
        w=normal(4, 3, 3, 3),
        w2=normal(4, 4, 3, 3, seed=1),
    )
    return Given(model, images(1, 3, 8, 8))


@case("G7", least=30)
def clip_neg_range() -> Given:
    """Clip to a range below zero: it is not dropped."""
    model = build(
        "(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) { a = Conv (x, w)  y = Clip (a, low, high) }",
        w=normal(4, 3, 3, 3),
        low=f32(-1),
        high=f32(-0.5),
    )
    return Given(model, images(1, 3, 8, 8))


@case("G7")
def clip_bound_computed_at_run_time() -> Given:
    """A bound of Clip is a graph input."""
    model = build(
        "(float[1, 3, 8, 8] x, float high) => (float[1, 4, 6, 6] y) { a = Conv (x, w)  y = Clip (a, low, high) }",
        w=normal(4, 3, 3, 3),
        low=f32(0),
    )
    feeds = [{**sample, "high": f32(1.5)} for sample in images(1, 3, 8, 8)]
    return Given(model, feeds)


@case("G7")
def clip6_as_attributes() -> Given:
    """Clip of opset 6, bounds as attributes."""
    model = build(
        "(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) { a = Conv (x, w)  y = Clip <min = 0.0, max = 1.0> (a) }",
        opset=10,
        w=normal(4, 3, 3, 3),
    )
    return Given(model, images(1, 3, 8, 8))


@case("G7")
def pad_value_outside_range(value: float = 10.0) -> Given:
    """The value of Pad is outside the range of the data."""
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 8, 8] y) {
            r = Relu (x)
            p = Pad (r, pads, value)
            y = Conv (p, w)
        }""",
        w=normal(4, 3, 3, 3),
        pads=np.array([0, 0, 1, 1, 0, 0, 1, 1]),
        value=f32(value),
    )
    return Given(model, images(1, 3, 8, 8))


@case("G7")
def pad_value_after_a_conv() -> Given:
    """The value of Pad is outside the range of the Conv before it."""
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) {
            c = Conv (x, w1)
            p = Pad (c, pads, value)
            y = Conv (p, w2)
        }""",
        w1=normal(4, 3, 3, 3),
        w2=normal(4, 4, 3, 3, seed=1),
        pads=np.array([0, 0, 1, 1, 0, 0, 1, 1]),
        value=f32(12.0),
    )
    return Given(model, images(1, 3, 8, 8))


@case("G7")
def two_pads_no_constant_value() -> Given:
    """Two Pads without a value, one that reflects."""
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 10, 10] y) {
            p = Pad (x, pads)
            c = Conv (p, w1)
            q = Pad <mode = "reflect"> (c, pads)
            y = Conv (q, w2)
        }""",
        w1=normal(4, 3, 3, 3),
        w2=normal(4, 4, 3, 3, seed=1),
        pads=np.array([0, 0, 1, 1, 0, 0, 1, 1]),
    )
    model.graph.output[0].type.tensor_type.shape.dim[2].dim_value = 8
    model.graph.output[0].type.tensor_type.shape.dim[3].dim_value = 8
    return Given(model, images(1, 3, 8, 8))


@case("G7")
def pad_minus_infinity_before_maxpool() -> Given:
    """Pad with minus infinity before MaxPool: it is no part of the range."""
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) {
            c = Conv (x, w1)
            p = Pad (c, pads, value)
            y = MaxPool <kernel_shape = [3, 3]> (p)
        }""",
        w1=normal(4, 3, 3, 3),
        pads=np.array([0, 0, 1, 1, 0, 0, 1, 1]),
        value=f32(-np.inf),
    )
    return Given(model, images(1, 3, 8, 8))


@case("G7", channel=10, say=r"\bcat\b|\bb\b")
def concat_branch_scales_1000x() -> Given:
    """Branches of a Concat 1000 times apart: the loss of the small one is said."""
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 8, 4, 4] y) {
            a = Conv (x, wa)
            b = Conv (x, wb)
            [cat] c = Concat <axis = 1> (a, b)
            y = MaxPool <kernel_shape = [3, 3]> (c)
        }""",
        wa=normal(4, 3, 3, 3, scale=100),
        wb=normal(4, 3, 3, 3, scale=0.1, seed=1),
    )
    feeds = images(1, 3, 8, 8)
    return Given(model, feeds)


@case("G7", asked={"per_channel": True})
def convtranspose_group_per_channel(group: int = 2) -> Given:
    """ConvTranspose with groups, per channel asked for."""
    w = normal(4, 8 // group, 3, 3)
    w[0] *= 20
    model = build(
        f"(float[1, 4, 6, 6] x) => (float[1, 8, 8, 8] y) {{ y = ConvTranspose <group = {group}> (x, w, b) }}",
        w=w,
        b=normal(8, seed=1),
    )
    return Given(model, images(1, 4, 6, 6))


@case("G7")
def gemm_bias_scalar() -> Given:
    """Gemm whose bias has no dimensions."""
    return gemm_bias(())


@case("G7")
def gemm_bias_per_row_and_channel() -> Given:
    """Gemm whose bias has one value per result: it stays float."""
    return gemm_bias((3, 8))


@case("G7")
def softmax_mask_minus_infinity() -> Given:
    """A causal mask of minus infinity: it is no part of the range."""
    return softmax_mask_fltmin(-np.inf)
