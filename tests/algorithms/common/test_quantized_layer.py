"""Quantized layers as matrix products, against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

import onnxq
from onnxq import Options
from onnxq.algorithms.common.quantized_layer import QuantizedLayer, quantized_layers
from onnxq.qparams import dequantize, fake_quantize, quantize
from tests.contract import infer
from tests.models import build, f32, normal

Floats = NDArray[np.float32]

CASES = {
    "1d": ("2, 6, 11", "2, 4, N", "Conv (x, w)", (4, 6, 3)),
    "1d strided, padded": ("2, 6, 11", "2, 4, N", "Conv <strides = [2], pads = [2, 1]> (x, w)", (4, 6, 3)),
    "2d": ("1, 6, 7, 9", "1, 4, N, M", "Conv (x, w)", (4, 6, 3, 2)),
    "1x1": ("2, 6, 7, 9", "2, 4, N, M", "Conv (x, w)", (4, 6, 1, 1)),
    "groups": ("1, 6, 7, 9", "1, 9, N, M", "Conv <group = 3> (x, w)", (9, 2, 3, 3)),
    "depthwise": ("2, 6, 8, 9", "2, 12, N, M", "Conv <group = 6, pads = [1, 1, 1, 1]> (x, w)", (12, 1, 3, 3)),
    "dilated": ("1, 6, 9, 9", "1, 4, N, M", "Conv <dilations = [2, 3], strides = [1, 2]> (x, w)", (4, 6, 3, 2)),
    "pads": ("1, 6, 7, 9", "1, 4, N, M", "Conv <pads = [0, 1, 2, 3]> (x, w)", (4, 6, 3, 3)),
    "same upper": ("1, 6, 8, 9", "1, 4, N, M", 'Conv <auto_pad = "SAME_UPPER", strides = [2, 2]> (x, w)', (4, 6, 3, 4)),
    "same lower": ("1, 6, 8, 9", "1, 4, N, M", 'Conv <auto_pad = "SAME_LOWER", strides = [2, 3]> (x, w)', (4, 6, 4, 2)),
    "valid": ("1, 6, 8, 9", "1, 4, N, M", 'Conv <auto_pad = "VALID", strides = [2, 1]> (x, w)', (4, 6, 3, 3)),
    "3d": ("1, 4, 5, 6, 7", "1, 4, N, M, K", "Conv <group = 2, pads = [1, 0, 1, 0, 1, 0]> (x, w)", (4, 2, 2, 3, 3)),
    "gemm": ("5, 8", "5, 6", "Gemm (x, w)", (8, 6)),
    "gemm, transposed": ("5, 8", "5, 6", "Gemm <transB = 1> (x, w)", (6, 8)),
    "matmul": ("5, 8", "5, 6", "MatMul (x, w)", (8, 6)),
    "matmul, batched": ("2, 3, 5, 8", "2, 3, 5, 6", "MatMul (x, w)", (8, 6)),
}  # fmt: skip


def one_layer(
    case: str, **asked: int | bool
) -> tuple[QuantizedLayer, onnxq.Quantized, Floats, list[dict[str, Floats]]]:
    """A layer, its quantized model, what it gives for a sample with the weights chosen, and the samples."""
    given, made, call, shape = CASES[case]
    model = build(f"(float[{given}] x) => (float[{made}] y) {{ y = {call} }}", w=normal(*shape))
    dims = [int(d) for d in given.split(",")]
    feeds = [{"x": normal(*dims, seed=s, scale=1.0)} for s in (1, 2)]
    options = Options(placement="all", **asked)  # type: ignore[arg-type]
    quantized = onnxq.quantize(model, feeds, options=options)
    (layer,) = quantized_layers(quantized.model, quantized.plan, stored=True)
    chosen = ir.serde.serialize_model(quantized.model)
    return layer, quantized, infer(chosen, feeds[:1], optimize=False)["y"][0], feeds


def as_rows(output: Floats, layer: QuantizedLayer) -> Floats:
    """An output as (groups, outputs of a group, positions)."""
    moved = np.moveaxis(output, 1 if layer.node.op_type == "Conv" else -1, 0)
    return np.ascontiguousarray(moved).reshape(layer.groups, moved.shape[0] // layer.groups, -1)


@pytest.mark.parametrize("case", CASES)
def test_the_matrix_product_is_the_layers_output(case: str) -> None:
    layer, _, output, feeds = one_layer(case)
    got = layer.matrix() @ layer.inputs(feeds[0]["x"])
    np.testing.assert_allclose(got, as_rows(output, layer), rtol=1e-4, atol=1e-4 * np.abs(output).max())


@pytest.mark.parametrize("case", CASES)
def test_positions_left_out_are_evenly_spaced(case: str) -> None:
    layer, _, _, feeds = one_layer(case)
    every = layer.inputs(feeds[0]["x"])
    few = layer.inputs(feeds[0]["x"], 3, 0.5)
    assert few.shape == (*every.shape[:2], 3)
    step = every.shape[2] / 3
    np.testing.assert_array_equal(few, every[:, :, [int(0.5 * step), int(1.5 * step), int(2.5 * step)]])
    np.testing.assert_array_equal(layer.inputs(feeds[0]["x"], every.shape[2]), every)


@pytest.mark.parametrize("case", CASES)
def test_a_matrix_turns_back_into_the_weight(case: str) -> None:
    layer, _, _, _ = one_layer(case)
    np.testing.assert_array_equal(layer.weight_of(layer.matrix()), layer.array())


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("per_channel", [True, False])
def test_rows_are_the_scales_of_the_matrix(case: str, per_channel: bool) -> None:
    layer, quantized, _, _ = one_layer(case, per_channel=per_channel, weight_bits=4)
    qp = quantized.qparams[layer.site]
    scale, zero = layer.rows(qp)
    assert scale.shape == zero.shape
    matrix = layer.matrix()
    integers = np.clip(np.rint(matrix / scale) + zero, qp.spec.qmin, qp.spec.qmax)
    np.testing.assert_array_equal(integers, layer.matrix(quantize(layer.array(), qp)))
    np.testing.assert_array_equal((integers - zero) * scale, layer.matrix(fake_quantize(layer.array(), qp)))
    np.testing.assert_array_equal(
        dequantize(quantize(layer.array(), qp), qp), layer.weight_of((integers - zero) * scale)
    )


def test_the_bias_of_a_matmul_is_the_add_behind_it() -> None:
    model = build(
        "(float[5, 8] x) => (float[5, 6] y) { a = MatMul (x, w)\n y = Add (b, a) }", w=normal(8, 6), b=normal(6)
    )
    quantized = onnxq.quantize(model, [{"x": normal(5, 8)}], options=Options(placement="all"))
    (layer,) = quantized_layers(quantized.model, quantized.plan)
    assert layer.bias is not None
    layer.set_bias(f32(range(6)))
    layer.set_weight(np.ones((8, 6)))
    got = infer(ir.to_proto(quantized.model), [{"x": f32(np.ones((5, 8)))}], optimize=False)["y"][0]
    np.testing.assert_array_equal(got, f32(np.tile(8 + np.arange(6), (5, 1))))


@pytest.mark.parametrize("bias", [(5, 6), (5, 1)])
def test_a_bias_that_is_not_one_number_an_output_is_none(bias: tuple[int, ...]) -> None:
    model = build("(float[5, 8] x) => (float[5, 6] y) { y = Gemm (x, w, b) }", w=normal(8, 6), b=normal(*bias))
    quantized = onnxq.quantize(model, [{"x": normal(5, 8)}], options=Options(placement="all"))
    (layer,) = quantized_layers(quantized.model, quantized.plan)
    assert layer.bias is None
