"""8-bit floating-point numbers against onnxruntime's QuantizeLinear and DequantizeLinear, bit for bit."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from onnxq.errors import BackendError
from onnxq.grids import float8
from onnxq.qparams import QParams, dequantize, ends, fake_quantize, quantize
from onnxq.ranged import from_range
from onnxq.spec import PerChannel, QuantSpec, Scheme
from tests.running import open_session

SPEC = QuantSpec(scheme=Scheme.FLOAT8)


def in_onnxruntime(x: NDArray[np.float32], scale: NDArray[np.float32]) -> NDArray[Any]:
    """What a QuantizeLinear and a DequantizeLinear make of numbers; scales of axis 1 where there are several."""
    zero = helper.make_tensor("z", TensorProto.FLOAT8E4M3FN, scale.shape, bytes(scale.size), raw=True)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], axis=1),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, x.shape)],
        [onnx.numpy_helper.from_array(scale, "s"), zero],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    return np.asarray(open_session(model, optimize=False).run(None, {"x": x})[0])


def values() -> NDArray[np.float32]:
    """Every number of the format, the middles between them and their neighbours, and random ones of all sizes."""
    numbers = np.sort(np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32))
    numbers = numbers[np.isfinite(numbers)]
    middles = (numbers[1:] + numbers[:-1]) / 2
    near = [np.nextafter(middles, np.float32(side), dtype=np.float32) for side in (-np.inf, np.inf)]
    random = np.random.default_rng(0)
    sizes = random.standard_normal(2000) * np.exp2(random.uniform(-14, 12, 2000))
    ends = [449, 463.9, 464, 465, 1e30, -1e30, np.inf, -np.inf]
    return np.concatenate([numbers, middles, *near, sizes, ends]).astype(np.float32)


@pytest.mark.parametrize("scale", [1.0, 0.0371, 2.0**-20, 3e30])
def test_as_onnxruntime(scale: float) -> None:
    with np.errstate(over="ignore"):
        x = values() * np.float32(scale)
    qp = QParams(SPEC, np.asarray(scale, np.float32), np.zeros((), np.int64))
    wanted = in_onnxruntime(x, qp.scale)
    np.testing.assert_array_equal(fake_quantize(x, qp), wanted)
    np.testing.assert_array_equal(dequantize(quantize(x, qp), qp), wanted)


def test_scales_of_channels() -> None:
    x = np.resize(values(), (16, 3, 40))
    spec = QuantSpec(scheme=Scheme.FLOAT8, granularity=PerChannel(1))
    scale = np.array([1.0, 0.01, 7.0], np.float32)
    wanted = in_onnxruntime(x, scale)
    np.testing.assert_array_equal(fake_quantize(x, QParams(spec, scale, np.zeros(3, np.int64))), wanted)


def test_nan_stays_and_the_largest_number_is_the_end_of_the_range() -> None:
    qp = from_range(-3.0, 2.0, SPEC)
    assert np.isnan(fake_quantize(np.array([np.nan], np.float32), qp)).all()
    assert float(qp.hi) == -float(qp.lo) == pytest.approx(3.0, rel=1e-6)
    np.testing.assert_allclose(fake_quantize(np.array([-3.0, 5.0], np.float32), qp), [-3.0, 3.0], rtol=1e-6)
    low, high = ends(qp, (2,))
    assert low == -high == pytest.approx(-3.0)
    assert fake_quantize(np.array([0.0], np.float32), from_range(0, 0, SPEC)) == 0


def test_noise_of_numbers_of_all_sizes() -> None:
    """31.5 dB, by the formula and by trial."""
    x = np.exp2(np.random.default_rng(0).uniform(-5, 8, 100_000)).astype(np.float32)
    error = fake_quantize(x, QParams(SPEC, np.float32(1.0).reshape(()), np.zeros((), np.int64))) / x - 1
    assert float(np.mean(np.square(error))) == pytest.approx(float8.RELATIVE_NOISE, rel=0.02)


@pytest.mark.parametrize("other", [{"bits": 4}, {"symmetric": False}, {"signed": False}])
def test_no_other_grids(other: dict[str, Any]) -> None:
    with pytest.raises(BackendError, match="no float8 grid"):
        from_range(-1.0, 1.0, QuantSpec(scheme=Scheme.FLOAT8, **other))
