"""Group 4: shapes that vary or are unknown, empty tensors, tensors without dimensions."""

from __future__ import annotations

import numpy as np
import pytest

from onnxq import DataError, ExecutionError, ModelError, Options, calibrate, quantize
from tests.cases import g04
from tests.contract import ALL, quantize_checked
from tests.models import build, f32, images, normal, untouched

RANGES = ["mse", "minmax", "entropy", "percentile:99.9", "ema", "std"]


@pytest.mark.parametrize("method", RANGES)
def test_variable_shape_entropy(method: str) -> None:
    result = quantize_checked(*g04.variable_shape_entropy(), Options(placement="all", range=method), least=15)
    assert len(result.quantized.plan.quantized) == 2


def test_variable_shape_sequences() -> None:
    quantize_checked(*g04.variable_shape_sequences())


def test_an_empty_sample_among_others() -> None:
    quantize_checked(*g04.empty_sample_among_others())


def test_an_empty_tensor_inside_keeps_its_readers_float() -> None:
    """A tensor that no sample fills has no range; what reads it stays float with that reason."""
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y, float[0, 6] z) {
            y = Conv (x, w)
            none = Slice (rows, zero, zero, zero)
            shifted = Mul (none, k)
            [m] z = MatMul (shifted, v)
            rows = Reshape (y, shape)
        }""",
        w=normal(4, 3, 3, 3),
        shape=np.array([24, 6]),
        zero=np.array([0]),
        k=f32([1, 2, 3, 4, 5, 6]),
        v=normal(6, 6, seed=1),
    )
    rows = model.graph.node.pop()
    model.graph.node.insert(1, rows)
    result = quantize_checked(model, images(1, 3, 8, 8))
    assert result.reasons["m"].strip()
    assert "Conv" in result.quantized.plan.quantized.values()


@pytest.mark.parametrize("method", RANGES)
def test_scalar_output_percentile(method: str) -> None:
    result = quantize_checked(*g04.scalar_output_percentile(), Options(placement="all", range=method), least=None)
    assert result.sqnr["y"] > 20


def test_a_quantized_scalar() -> None:
    """A tensor without dimensions is quantized itself."""
    result = quantize_checked(*g04.quantized_scalar())
    assert result.quantized.plan.quantized["scale"] == "Mul"
    assert "m" in result.quantized.plan.observed()


def test_a_scalar_input() -> None:
    quantize_checked(*g04.scalar_input())


def test_unknown_rank_after_nonmaxsuppression() -> None:
    result = quantize_checked(*g04.unknown_shape_after_nonmaxsuppression(), least=None)
    assert result.quantized.plan.quantized.keys() >= {"c", "m", "n"}


def test_unknown_rank_after_nonzero() -> None:
    result = quantize_checked(*g04.unknown_shape_after_nonzero())
    assert result.quantized.plan.quantized.keys() >= {"m", "n"}


def test_unknown_rank_that_differs_from_sample_to_sample() -> None:
    result = quantize_checked(*g04.rank_differs_from_sample_to_sample())
    assert result.quantized.plan.quantized.keys() >= {"m", "add", "n"}


def test_reshape_to_batch_1_and_data_of_batch_8() -> None:
    model, feeds = g04.reshape_to_batch_1_and_data_of_batch_8()
    with pytest.raises(ExecutionError, match=r"sample 2.*flatten"):
        quantize(model, feeds, options=ALL)
    with pytest.raises(ExecutionError, match=r"sample 0.*flatten"):
        calibrate(model, feeds[2:])


def test_reshape_to_batch_1_and_data_of_batch_1() -> None:
    quantize_checked(g04.fixed_to_one(), images(1, 3, 8, 8))


def test_input_fixed_to_batch_1_and_data_of_batch_8() -> None:
    with pytest.raises(DataError, match=r"sample 0, input 'x'.*8x3x8x8.*1x3x8x8.*batch is fixed to 1"):
        quantize(*g04.batch_1_and_data_of_batch_8(), options=ALL)


def test_dimension_of_size_one_broadcast() -> None:
    model, feeds = g04.broadcast_of_size_one()
    quantize_checked(model, feeds)


@pytest.mark.parametrize("opset", [9, 11, 17])
def test_input_without_a_shape_is_refused_before_calibration(opset: int) -> None:
    """The ONNX checker wants a shape, if only of free sizes, and so does the converter of old opsets."""
    model = build("(float[1, 4] x) => (float[1, 4] y) { h = Relu (x)\n y = Neg (h) }", opset=opset)
    model.graph.input[0].type.tensor_type.ClearField("shape")

    with pytest.raises(ModelError, match="input 'x': it is declared without a shape"):
        quantize(model, untouched)
