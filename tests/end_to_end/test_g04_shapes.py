"""Group 4: shapes that vary or are unknown, empty tensors, tensors without dimensions."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from onnxq import DataError, ExecutionError, ModelError, Options, calibrate, quantize
from tests.contract import ALL, quantize_checked
from tests.models import build, f32, feeds_for, images, normal

RANGES = ["mse", "minmax", "entropy", "percentile:99.9", "ema", "std"]


def of_any_size() -> onnx.ModelProto:
    return build(
        """(float[N, 3, H, W] x) => (float[N, 4, P, Q] y) {
            c = Conv (x, w)
            y = LeakyRelu (c)
        }""",
        w=normal(4, 3, 3, 3),
    )


def sized(*sizes: tuple[int, int, int]) -> list[dict[str, np.ndarray]]:
    return [images(n, 3, h, w, samples=1, seed=i)[0] for i, (n, h, w) in enumerate(sizes)]


@pytest.mark.parametrize("method", RANGES)
def test_variable_shape_entropy(method: str) -> None:
    feeds = sized((1, 8, 8), (1, 16, 9), (3, 7, 20), (1, 32, 32))
    result = quantize_checked(of_any_size(), feeds, Options(placement="all", range=method), least=15)
    assert len(result.quantized.plan.quantized) == 2


def test_variable_shape_sequences() -> None:
    model = build(
        """(float[N, T, 8] x) => (float[N, 4] y) {
            h = MatMul (x, w)
            g = Add (h, b)
            r = Relu (g)
            m = ReduceMean <axes = [1], keepdims = 0> (r)
            y = Gemm (m, v)
        }""",
        w=normal(8, 16),
        b=normal(16, seed=1),
        v=normal(16, 4, seed=2),
    )
    quantize_checked(model, [normal_feed(t, seed=t) for t in (5, 1, 17, 3)])


def normal_feed(length: int, seed: int) -> dict[str, np.ndarray]:
    return {"x": normal(2, length, 8, seed=seed, scale=1)}


def test_an_empty_sample_among_others() -> None:
    feeds = sized((1, 8, 8), (0, 8, 8), (2, 8, 8))
    quantize_checked(of_any_size(), feeds)


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
        k=f32(2),
        v=normal(6, 6, seed=1),
    )
    rows = model.graph.node.pop()
    model.graph.node.insert(1, rows)
    result = quantize_checked(model, images(1, 3, 8, 8))
    assert result.reasons["m"].strip()
    assert "Conv" in result.quantized.plan.quantized.values()


@pytest.mark.parametrize("method", RANGES)
def test_scalar_output_percentile(method: str) -> None:
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y, float mean) {
            y = Conv (x, w)
            mean = ReduceMean <keepdims = 0> (y)
        }""",
        w=normal(4, 3, 3, 3),
    )
    result = quantize_checked(model, images(1, 3, 8, 8), Options(placement="all", range=method), least=None)
    assert result.sqnr["y"] > 20


def test_a_quantized_scalar() -> None:
    """A tensor without dimensions is quantized itself."""
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) {
            c = Conv (x, w)
            m = ReduceMax <keepdims = 0> (c)
            [scale] y = Mul (c, m)
        }""",
        w=normal(4, 3, 3, 3),
    )
    result = quantize_checked(model, images(1, 3, 8, 8))
    assert result.quantized.plan.quantized["scale"] == "Mul"
    assert "m" in result.quantized.plan.observed()


def test_a_scalar_input() -> None:
    model = build(
        "(float[1, 3, 8, 8] x, float k) => (float[1, 4, 6, 6] y) { c = Conv (x, w)  y = Mul (c, k) }",
        w=normal(4, 3, 3, 3),
    )
    feeds = [{**sample, "k": f32(1 + i / 4)} for i, sample in enumerate(images(1, 3, 8, 8))]
    quantize_checked(model, feeds)


def test_unknown_rank_after_nonmaxsuppression() -> None:
    model = build(
        """(float[1, 3, 8, 8] x, float[1, 6, 4] boxes) => (float[K, 4] y) {
            [c] f = Conv (x, w)
            p = GlobalAveragePool (f)
            s = Reshape (p, shape)
            found = NonMaxSuppression (boxes, s, most)
            which = Gather <axis = 1> (found, two)
            b = Squeeze (boxes, first)
            picked = Gather <axis = 0> (b, which)
            [m] h = MatMul (picked, v)
            [n] y = MatMul (h, v)
        }""",
        w=normal(6, 3, 3, 3),
        shape=np.array([1, 1, 6]),
        most=np.array([4]),
        two=np.array(2),
        first=np.array([0]),
        v=normal(4, 4, seed=1),
    )
    rng = np.random.default_rng(0)
    corners = [np.sort(rng.random((1, 6, 2, 2)) * 4, axis=2).reshape(1, 6, 4).astype(np.float32) for _ in range(6)]
    feeds = [{**sample, "boxes": boxes} for sample, boxes in zip(images(1, 3, 8, 8), corners, strict=True)]
    result = quantize_checked(model, feeds, least=None)
    assert result.quantized.plan.quantized.keys() >= {"c", "m", "n"}


def test_unknown_rank_after_nonzero() -> None:
    model = build(
        """(float[6, 8] x) => (float y) {
            r = Relu (x)
            found = NonZero (r)
            which = Transpose <perm = [1, 0]> (found)
            [values] g = GatherND (x, which)
            rows = Reshape (g, column)
            [m] h = MatMul (rows, w)
            [n] h2 = MatMul (h, v)
            y = ReduceMean <keepdims = 0> (h2)
        }""",
        column=np.array([-1, 1]),
        w=normal(1, 8),
        v=normal(8, 8, seed=1),
    )
    result = quantize_checked(model, images(6, 8))
    assert result.quantized.plan.quantized.keys() >= {"m", "n"}


def test_unknown_rank_that_differs_from_sample_to_sample() -> None:
    model = build(
        """(float[6, 8] x, int64[K] shape) => (float y) {
            r = Reshape (x, shape)
            [m] h = MatMul (r, w)
            [add] s = Add (h, h)
            [n] h2 = MatMul (s, v)
            p = Relu (h2)
            y = ReduceMean <keepdims = 0> (p)
        }""",
        w=normal(8, 8),
        v=normal(8, 8, seed=1),
    )
    shapes = ([6, 8], [2, 3, 8], [1, 3, 2, 8])
    feeds = [{**sample, "shape": np.array(s)} for sample, s in zip(images(6, 8), shapes * 2, strict=True)]
    result = quantize_checked(model, feeds)
    assert result.quantized.plan.quantized.keys() >= {"m", "add", "n"}


def fixed_to_one() -> onnx.ModelProto:
    return build(
        """(float[N, 3, 8, 8] x) => (float[1, 5] y) {
            c = Conv (x, w)
            [flatten] f = Reshape (c, shape)
            y = Gemm (f, v)
        }""",
        w=normal(4, 3, 3, 3),
        shape=np.array([1, 144]),
        v=normal(144, 5, seed=1),
    )


def test_reshape_to_batch_1_and_data_of_batch_8() -> None:
    feeds = [*images(1, 3, 8, 8, samples=2), *images(8, 3, 8, 8, samples=1)]
    with pytest.raises(ExecutionError, match=r"sample 2.*flatten"):
        quantize(fixed_to_one(), feeds, options=ALL)
    with pytest.raises(ExecutionError, match=r"sample 0.*flatten"):
        calibrate(fixed_to_one(), feeds[2:])


def test_reshape_to_batch_1_and_data_of_batch_1() -> None:
    quantize_checked(fixed_to_one(), images(1, 3, 8, 8))


def test_input_fixed_to_batch_1_and_data_of_batch_8() -> None:
    model = build("(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) { y = Conv (x, w) }", w=normal(4, 3, 3, 3))
    with pytest.raises(DataError, match=r"sample 0, input 'x'.*8x3x8x8.*1x3x8x8.*batch is fixed to 1"):
        quantize(model, images(8, 3, 8, 8), options=ALL)


def test_dimension_of_size_one_broadcast() -> None:
    model = build(
        """(float[2, 4, 1, 6] x, float[1, 5, 1] z) => (float[2, 4, 5, 6] y) {
            a = Mul (x, z)
            [m] y = MatMul (a, w)
        }""",
        w=normal(6, 6),
    )
    quantize_checked(model, feeds_for(model))


def test_input_without_a_shape_is_refused_before_calibration() -> None:
    """The ONNX checker wants a shape, if only of free sizes."""
    model = build("(float[1, 4] x) => (float[1, 3] y) { y = MatMul (x, w) }", w=normal(4, 3))
    model.graph.input[0].type.tensor_type.ClearField("shape")

    def no_data() -> None:
        raise DataError("the data was read though the model is invalid")

    with pytest.raises(ModelError, match=r"invalid model.*shape"):
        quantize(model, no_data)
