"""Group 6: the forms in which a model may hold a constant."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.cases.case import Given, case
from tests.models import build, f32, feeds_for, images, normal


def int8_conv(*, channelwise: bool = True, **zero: Any) -> onnx.ModelProto:
    axis = "<axis = 0>" if channelwise else ""
    return build(
        f"""(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) {{
            w = DequantizeLinear {axis} ({", ".join(["q", "s", *zero])})
            [c] h = Conv (x, w)
            [d] y = Conv (h, v)
        }}""",
        q=np.random.default_rng(0).integers(-127, 128, (4, 3, 3, 3)).astype(np.int8),
        s=f32([0.002, 0.003, 0.001, 0.004]) if channelwise else f32(0.002),
        v=normal(4, 4, 1, 1),
        **zero,
    )


@case("G6")
def value_int_as_index() -> Given:
    """An index is a Constant node with value_int."""
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 6, 6] y) {
            c = Conv (x, w)
            i = Constant <value_int = 2> ()
            y = Gather <axis = 1> (c, i)
        }""",
        w=normal(4, 3, 3, 3),
    )
    return Given(model, images(1, 3, 8, 8))


@case("G6")
def concat_with_empty_tensor() -> Given:
    """Concat with an operand of no elements."""
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 8, 8] y) {
            [c] a = Conv <pads = [1, 1, 1, 1]> (x, w)
            [both] s = Concat <axis = 1> (a, none)
            y = Relu (s)
        }""",
        w=normal(4, 3, 3, 3),
        none=np.zeros((1, 0, 8, 8), np.float32),
    )
    return Given(model, images(1, 3, 8, 8))


@case("G6")
def concat_with_empty_input() -> Given:
    """Concat with an input of no elements, as a cache that starts empty."""
    model = build(
        """(float[1, 3, 8, 8] x, float[P, 3, 8, 8] past) => (float[Q, 4, 8, 8] y) {
            both = Concat <axis = 0> (past, x)
            [c] y = Conv <pads = [1, 1, 1, 1]> (both, w)
        }""",
        w=normal(4, 3, 3, 3),
    )
    feeds = [{**sample, "past": np.zeros((0, 3, 8, 8), np.float32)} for sample in images(1, 3, 8, 8)]
    return Given(model, feeds)


@case("G6")
def weight_computed_in_steps() -> Given:
    """The weight is transposed, scaled and reshaped from constants."""
    model = build(
        """(float[N, 8] x) => (float[N, 8] y) {
            half = Constant <value_float = 0.5> ()
            t = Transpose (w)
            h = Mul (t, half)
            r = Reshape (h, shape)
            [m] y = MatMul (x, r)
        }""",
        w=normal(4, 16),
        shape=np.array([8, -1]),
    )
    return Given(model, feeds_for(model, N=4))


def with_weight(weight: TensorProto, elem_type: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """A Conv that reads a weight stored in some form."""
    cast = "h = Cast <to = 1> (w)" if elem_type != TensorProto.FLOAT else "h = Identity (w)"
    model = build(f"(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) {{ {cast}  [c] y = Conv (x, h) }}")
    model.graph.initializer.append(weight)
    return model


@case("G6")
def value_float_as_operand(form: str = "value_floats = [2.5]") -> Given:
    """An operand is a Constant node with value_floats."""
    text = """(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) {
        c = Conv (x, w)
        %s
        [mul] m = Mul (c, k)
        r = Sigmoid (c)
        y = Add (m, r)
    }"""
    return Given(build(text % f"k = Constant <{form}> ()", w=normal(4, 3, 3, 3)), images(1, 3, 8, 8))


@case("G6")
def weight_in_float_data() -> Given:
    """The weight is stored in float_data, not as raw bytes."""
    numbers = normal(4, 3, 3, 3)
    fields = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=numbers.shape, float_data=numbers.ravel())
    return Given(with_weight(fields), images(1, 3, 8, 8))


@case("G6")
def half_weight_in_int32_data() -> Given:
    """A float16 weight stored in int32_data behind a Cast."""
    numbers = normal(4, 3, 3, 3).astype(np.float16)
    fields = TensorProto(name="w", data_type=TensorProto.FLOAT16, dims=numbers.shape)
    fields.int32_data.extend(numbers.view(np.uint16).ravel().tolist())
    return Given(with_weight(fields, TensorProto.FLOAT16), images(1, 3, 8, 8))


@case("G6")
def dequantized_int8_weight() -> Given:
    """The weight of a Conv is int8 behind DequantizeLinear: its integers are kept."""
    return Given(int8_conv(), images(1, 3, 8, 8))


@case("G6")
def quantizer_on_a_float_weight() -> Given:
    """Quantizers stand on a float weight, as training frameworks export it: the scale of training is kept."""
    numbers = normal(4, 3, 3, 3)
    scale = f32(np.abs(numbers).max(axis=(1, 2, 3)) / 100)  # one that no range method would choose
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) {
            q = QuantizeLinear <axis = 0> (w, s, z)
            d = DequantizeLinear <axis = 0> (q, s, z)
            [c] h = Conv (x, d)
            [e] y = Conv (h, v)
        }""",
        w=numbers,
        s=scale,
        z=np.zeros(4, np.int8),
        v=normal(4, 4, 1, 1, seed=1),
    )
    return Given(model, images(1, 3, 8, 8))


@case("G6")
def sparse_weight() -> Given:
    """The weight is a sparse initializer."""
    numbers = np.where(np.random.default_rng(0).random((4, 3, 3, 3)) < 0.4, normal(4, 3, 3, 3), 0).astype(np.float32)
    model = build("(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) { [c] y = Conv (x, w) }")
    where = np.flatnonzero(numbers)
    values = numpy_helper.from_array(numbers.ravel()[where], "w")
    model.graph.sparse_initializer.append(
        helper.make_sparse_tensor(values, numpy_helper.from_array(where, "w_at"), list(numbers.shape))
    )
    return Given(model, images(1, 3, 8, 8))
