"""Group 3: element types, of the model and of the integers asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper

from tests.cases.case import Given, case
from tests.models import build, f32, feeds_for, normal


def f16(array: Any) -> np.ndarray[Any, Any]:
    return np.asarray(array, np.float16)


@case("G3")
def fp16_conv(opset: int = 17) -> Given:
    """Conv and bias in float16."""
    model = build(
        "(float16[1, 3, 8, 8] x) => (float16[1, 4, 6, 6] y) { c = Conv (x, w, b)  y = Relu (c) }",
        opset=opset,
        w=f16(normal(4, 3, 3, 3)),
        b=f16(normal(4, seed=1)),
    )
    return Given(model, feeds_for(model))


@case("G3")
def fp16_matmul() -> Given:
    """MatMul in float16."""
    model = build("(float16[N, 16] x) => (float16[N, 8] y) { y = MatMul (x, w) }", w=f16(normal(16, 8)))
    return Given(model, feeds_for(model, N=4))


@case("G3")
def fp16_inside_a_float_model() -> Given:
    """A float16 part between two Casts."""
    model = build(
        """(float[N, 16] x) => (float[N, 8] y) {
            h = Cast <to = 10> (x)
            m = MatMul (h, w)
            y = Cast <to = 1> (m)
        }""",
        w=f16(normal(16, 8)),
    )
    return Given(model, feeds_for(model, N=4))


@case("G3")
def double_matmul() -> Given:
    """MatMul in double: quantized, or said that it is not."""
    model = build("(double[N, 16] x) => (double[N, 8] y) { [m] y = MatMul (x, w) }", w=normal(16, 8).astype(np.float64))
    return Given(model, feeds_for(model, N=4))


@case("G3")
def double_between_float_layers() -> Given:
    """A double part between two float layers."""
    model = build(
        """(float[N, 16] x) => (float[N, 8] y) {
            m = MatMul (x, w)
            d = Cast <to = 11> (m)
            e = Mul (d, d)
            f = Cast <to = 1> (e)
            y = MatMul (f, w2)
        }""",
        w=normal(16, 8),
        w2=normal(8, 8, seed=1),
    )
    return Given(model, feeds_for(model, N=4))


@case("G3", asked={"act_bits": 16}, least=35)
def int16_activations_opset17(opset: int = 17) -> Given:
    """16-bit activations asked of a model of opset 17."""
    model = build("(float[N, 16] x) => (float[N, 8] y) { y = MatMul (x, w) }", opset=opset, w=normal(16, 8))
    return Given(model, feeds_for(model, N=4))


@case("G3", asked={"weight_bits": 4}, least=10)
def int4_weights_of_odd_size(shape: tuple[int, int] = (5, 3)) -> Given:
    """15 weights of 4 bits: an odd number of nibbles."""
    model = build(f"(float[N, {shape[0]}] x) => (float[N, {shape[1]}] y) {{ y = MatMul (x, w) }}", w=normal(*shape))
    return Given(model, feeds_for(model, N=4))


@case("G3")
def int4_blocks_that_do_not_divide(k: int = 33) -> Given:
    """33 rows of weights that are stored in blocks of 32 already: they stay as they are."""
    blocks = -(-k // 32)
    model = build(
        f"""(float[N, {k}] x) => (float[N, 8] y) {{
            d = DequantizeLinear <axis = 0, block_size = 32> (w, s)
            [m] h = MatMul (x, d)
            [n] y = MatMul (h, v)
        }}""",
        opset=21,
        ir_version=10,
        s=f32(np.linspace(0.1, 0.3, blocks * 8).reshape(blocks, 8)),
        v=normal(8, 8, seed=3),
    )
    numbers = np.random.default_rng(0).integers(-8, 8, (k, 8))
    model.graph.initializer.append(helper.make_tensor("w", TensorProto.INT4, numbers.shape, numbers.reshape(-1)))
    return Given(model, feeds_for(model, N=4))


@case("G3", asked={"weight_bits": "fp8", "act_bits": "fp8"}, refuse="fp8|float8|FLOAT8")
def fp8_weights() -> Given:
    """8-bit floats asked for a target that has none: an error that says so."""
    model = build("(float[N, 16] x) => (float[N, 8] y) { [m] y = MatMul (x, w) }", opset=19, w=normal(16, 8))
    return Given(model, feeds_for(model, N=4))


@case("G3")
def int4_block_longer_than_the_axis() -> Given:
    """20 rows of weights that are stored in one short block of 32: they stay as they are."""
    return int4_blocks_that_do_not_divide(20)
