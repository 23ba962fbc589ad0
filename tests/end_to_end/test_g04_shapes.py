"""Group 4: free, unknown, empty and scalar shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from onnxq import DataError, ExecutionError, ModelError, Options, quantize
from tests.contract import ALL, quantize_checked
from tests.models import build, f32, feeds_for, images, normal

RANGES = ("mse", "minmax", "entropy", "percentile", "ema", "std", "lsq")


def no_data() -> Any:
    raise DataError("the data was read though the model is invalid")


def varying(channels: int, *sizes: tuple[int, int]) -> list[dict[str, Any]]:
    return [{"x": normal(1, channels, *size, seed=i, scale=1)} for i, size in enumerate(sizes)]


def fully_convolutional() -> onnx.ModelProto:
    return build(
        """(float[N, 3, H, W] x) => (float[N, 4, A, B] y) {
            c = Conv (x, w)
            r = Relu (c)
            y = Conv (r, v)
        }""",
        w=normal(4, 3, 3, 3),
        v=normal(4, 4, 3, 3, seed=1),
    )


@pytest.mark.parametrize("method", RANGES)
def test_variable_shape(method: str) -> None:
    """``variable_shape_entropy``, and with every other range method."""
    feeds = varying(3, (8, 8), (16, 5), (31, 17), (6, 40))
    quantize_checked(fully_convolutional(), feeds, Options(placement="all", range=method), least=15)


def test_variable_batch_and_last_batch_smaller() -> None:
    feeds = [{"x": normal(n, 3, 8, 8, seed=n, scale=1)} for n in (4, 4, 4, 1)]
    quantize_checked(fully_convolutional(), feeds)


@pytest.mark.parametrize("method", RANGES)
def test_scalar_output(method: str) -> None:
    """``scalar_output_percentile``: a 0-d output of ReduceMean(keepdims=0)."""
    model = build(
        """(float[1, 3, 8, 8] x) => (float y) {
            c = Conv (x, w, b)
            m = ReduceMean <keepdims = 0> (c)
            y = Mul (m, k)
        }""",
        w=normal(4, 3, 3, 3),
        b=f32([1, 2, 3, 4]),
        k=f32(2),
    )
    quantize_checked(model, images(1, 3, 8, 8), Options(placement="all", range=method))


def test_scalar_input() -> None:
    model = build(
        "(float[1, 4] x, float k) => (float[1, 4] y) { m = MatMul (x, w)  y = Mul (m, k) }", w=normal(4, 4)
    )
    quantize_checked(model, feeds_for(model))


def test_unknown_rank_after_nonmaxsuppression() -> None:
    model = build(
        """(float[1, 6, 4] boxes, float[1, 1, 6] scores, float[6, 8] x) => (float[N, 4] y) {
            found = NonMaxSuppression (boxes, scores, most, iou)
            column = Gather <axis = 1> (found, two)
            picked = Gather (x, column)
            y = MatMul (picked, w)
        }""",
        most=np.array([4]),
        iou=f32([0.5]),
        two=np.array(2),
        w=normal(8, 4),
    )
    corners = np.sort(np.random.default_rng(0).random((1, 6, 2, 2)), axis=2).reshape(1, 6, 4).astype(np.float32)
    feeds = [{"boxes": corners, "scores": np.random.default_rng(i).random((1, 1, 6)).astype(np.float32),
              "x": normal(6, 8, seed=i, scale=1)} for i in range(4)]  # fmt: skip
    result = quantize_checked(model, feeds)
    assert "MatMul" in result.quantized.plan.quantized.values()


def test_unknown_rank_after_nonzero() -> None:
    model = build(
        """(float[4, 8] x) => (float[N, 4] y) {
            where = NonZero (x)
            row = Gather <axis = 0> (where, zero)
            picked = Gather (x, row)
            y = MatMul (picked, w)
        }""",
        zero=np.array(0),
        w=normal(8, 4),
    )
    result = quantize_checked(model, images(4, 8))
    assert "MatMul" in result.quantized.plan.quantized.values()


def test_unknown_rank_of_an_input() -> None:
    model = build("(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) { c = Conv (x, w)  y = Relu (c) }", w=normal(4, 3, 3, 3))
    model.graph.input[0].type.tensor_type.ClearField("shape")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    with pytest.raises(ModelError, match=r"invalid model.*shape"):  # the ONNX checker wants a shape, if only of free sizes
        quantize(model, no_data, options=ALL)


def test_reshape_computed_at_run_time() -> None:
    model = build(
        """(float[N, 4, 6] x) => (float[M, 5] y) {
            s = Shape (x)
            n = Gather (s, zero)
            u = Unsqueeze (n, axes)
            t = Concat <axis = 0> (u, rest)
            f = Reshape (x, t)
            y = MatMul (f, w)
        }""",
        zero=np.array(0),
        axes=np.array([0]),
        rest=np.array([24]),
        w=normal(24, 5),
    )
    feeds = [{"x": normal(n, 4, 6, seed=n, scale=1)} for n in (1, 2, 5)]
    result = quantize_checked(model, feeds)
    assert "MatMul" in result.quantized.plan.quantized.values()


def fixed_batch() -> onnx.ModelProto:
    return build(
        """(float[N, 4] x) => (float[1, 3] y) {
            [fix] f = Reshape (x, shape)
            y = MatMul (f, w)
        }""",
        shape=np.array([1, 4]),
        w=normal(4, 3),
    )


def test_reshape_to_a_fixed_batch() -> None:
    feeds = [{"x": normal(n, 4, seed=n, scale=1)} for n in (1, 1, 8)]
    with pytest.raises((DataError, ExecutionError), match=r"sample 2.*'?fix'?"):
        quantize(fixed_batch(), feeds, options=ALL)
    quantize_checked(fixed_batch(), feeds[:2])


def test_fixed_batch_of_the_input_itself() -> None:
    model = build("(float[1, 4] x) => (float[1, 3] y) { y = MatMul (x, w) }", w=normal(4, 3))
    with pytest.raises(DataError, match=r"sample 1.*'x'.*8.*1|sample 1.*'x'.*1.*8"):
        quantize(model, [{"x": normal(1, 4)}, {"x": normal(8, 4)}], options=ALL)


def test_empty_batch_among_the_samples() -> None:
    model = build("(float[N, 4] x) => (float[N, 3] y) { h = MatMul (x, w)  y = Relu (h) }", w=normal(4, 3))
    feeds = [{"x": normal(n, 4, seed=n, scale=1)} for n in (3, 0, 2)]
    quantize_checked(model, feeds)


def test_nothing_but_empty_samples() -> None:
    model = build("(float[N, 4] x) => (float[N, 3] y) { [mm] y = MatMul (x, w) }", w=normal(4, 3))
    result = quantize_checked(model, [{"x": np.zeros((0, 4), np.float32)}], least=None)
    assert "never computed" in result.reasons["mm"]


def test_empty_tensor_inside_the_graph() -> None:
    model = build(
        """(float[1, 4, 6, 6] x) => (float[1, 4, 4, 4] y, float[1, 0, 4, 4] e) {
            y = Conv (x, w)
            e = Slice (y, start, stop, axis)
        }""",
        w=normal(4, 4, 3, 3),
        start=np.array([2]),
        stop=np.array([2]),
        axis=np.array([1]),
    )
    quantize_checked(model, images(1, 4, 6, 6))


def test_one_element_tensors() -> None:
    model = build(
        "(float[1, 1] x) => (float[1, 1] y) { h = MatMul (x, w)  s = Add (h, b)  y = Relu (s) }",
        w=f32([[0.7]]),
        b=f32([0.2]),
    )
    quantize_checked(model, [{"x": f32([[v]])} for v in (0.1, 1.0, 3.0, 5.0)])


def test_high_ranks() -> None:
    model = build(
        """(float[1, 2, 1, 2, 3, 4] x) => (float[1, 2, 1, 2, 3, 5] y) {
            m = MatMul (x, w)
            t = Transpose <perm = [0, 1, 2, 3, 5, 4]> (m)
            u = Transpose <perm = [0, 1, 2, 3, 5, 4]> (t)
            y = Add (u, b)
        }""",
        w=normal(4, 5),
        b=normal(5, seed=1),
    )
    quantize_checked(model, images(1, 2, 1, 2, 3, 4))


def test_broadcasting_operands() -> None:
    model = build(
        """(float[2, 1, 4] x, float[3, 1] z) => (float[2, 3, 4] y) {
            m = MatMul (x, w)
            a = Add (m, z)
            y = Mul (a, k)
        }""",
        w=normal(4, 4),
        k=f32([[2.0, 1, 0.5, -1]]),
    )
    quantize_checked(model, feeds_for(model))


def test_wrong_value_infos_in_the_file_do_not_matter_for_free_dimensions() -> None:
    model = fully_convolutional()
    quantize_checked(onnx.shape_inference.infer_shapes(model), varying(3, (8, 8), (9, 12)))
