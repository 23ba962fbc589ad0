"""Small models of which OpenVINO 2026.4.1 computes the plain QDQ form wrongly, or refuses it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx

from tests.backends.openvino_row_cases import ROWS
from tests.models import build, normal

__all__ = ["CASES"]


def _two_readers() -> onnx.ModelProto:
    """Without the bias of zeros: 0 dB, as the scale is applied twice."""
    return build(
        """(float[N, 4, 8, 8] x) => (float[N, 4, 8, 8] y) {
            c = Conv <pads = [1, 1, 1, 1]> (x, w)
            t = Tanh (c)
            y = Add (c, t)
        }""",
        w=normal(4, 4, 3, 3),
    )


def _two_readers_of_a_multiple() -> onnx.ModelProto:
    return build(
        """(float[N, 4, 8, 8] x) => (float[N, 4, 8, 8] y, float[N, 4, 8, 8] m) {
            c = Conv (x, w)
            m = Mul (c, half)
            y = Relu (m)
        }""",
        w=normal(4, 4, 1, 1),
        half=np.float32(0.5),
    )


def _two_readers_of_a_product() -> onnx.ModelProto:
    return build(
        """(float[N, 4, 8] x) => (float[N, 4, 4] y) {
            t = Transpose <perm = [0, 2, 1]> (x)
            p = MatMul (x, t)
            a = Tanh (p)
            y = Add (p, a)
        }"""
    )


def _two_readers_of_a_transposed_convolution() -> onnx.ModelProto:
    return build(
        """(float[N, 4, 8, 8] x) => (float[N, 4, 16, 16] y) {
            c = ConvTranspose <strides = [2, 2]> (x, w)
            t = Tanh (c)
            y = Add (c, t)
        }""",
        w=normal(4, 4, 2, 2),
    )


def _spatial_attention() -> onnx.ModelProto:
    """CBAM's. The quantizer behind a ReduceMax in float is computed before its maximum: 18 dB."""
    return build(
        """(float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) {
            a = ReduceMean <axes = [1]> (x)
            b = ReduceMax <axes = [1]> (x)
            c = Concat <axis = 1> (a, b)
            d = Conv <pads = [1, 1, 1, 1]> (c, w)
            e = Sigmoid (d)
            y = Mul (x, e)
        }""",
        w=normal(1, 2, 3, 3),
    )


def _largest_of_all() -> onnx.ModelProto:
    return build(
        """(float[2, 4, 8, 8] x) => (float[2, 3, 1, 1] y) {
            p = GlobalMaxPool (x)
            y = Conv (p, w)
        }""",
        w=normal(3, 4, 1, 1),
    )


def _moved_by_3() -> onnx.ModelProto:
    return build(
        "(float[1, 8, 9, 9] x) => (float[1, 8, 28, 28] y) { y = ConvTranspose <strides = [3, 3]> (x, w) }",
        w=normal(8, 8, 4, 4),
    )


def _cut_off() -> onnx.ModelProto:
    return build(
        "(float[1, 8, 9, 9] x) => (float[1, 8, 8, 10] y) { y = ConvTranspose <pads = [1, 1, 0, 0]> (x, w, b) }",
        w=normal(8, 8, 1, 3),
        b=normal(8, seed=1),
    )


def _strides_beyond_the_kernel() -> onnx.ModelProto:
    return build(
        """(float[2, 4, 2, 3] x) => (float[2, 4, 3, 4] y) {
            a = ConvTranspose <strides = [2, 1]> (x, w, b)
            c = Relu (a)
            y = MatMul (c, v)
        }""",
        w=normal(4, 4, 1, 1),
        b=normal(4, seed=1),
        v=normal(3, 4, seed=2),
    )


def _rows_into_channels() -> onnx.ModelProto:
    """It gives a tensor of another shape."""
    return build(
        """(float[2, 4, 8, 8] x, float[2, 4, 8, 8] z) => (float[2, 5, 8, 4] y) {
            c = Concat <axis = 3> (x, z)
            r = Transpose <perm = [0, 3, 2, 1]> (c)
            y = Conv (r, w)
        }""",
        w=normal(5, 16, 1, 1),
    )


def _sums_along_an_axis() -> onnx.ModelProto:
    """Below opset 18 OpenVINO reads no axes of these, in float too: it reduces all of them."""
    return build(
        """(float[2, 4, 8] x) => (float[2, 4, 1] y, float[2, 4, 1] z) {
            m = MatMul (x, w)
            y = ReduceLogSumExp <axes = [2]> (m)
            z = ReduceL1 <axes = [2]> (m)
        }""",
        w=normal(8, 8),
        opset=12,
    )


def _half_a_spectrum() -> onnx.ModelProto:
    """Of a DFT that is onesided OpenVINO makes one axis too many, in float too."""
    return build(
        """(float[4, 8] x) => (float[4, 5, 2] y) {
            m = MatMul (x, w)
            r = Unsqueeze (m, last)
            y = DFT <axis = 1, onesided = 1> (r)
        }""",
        w=normal(8, 8),
        last=np.array([2]),
        opset=17,
    )


def _spectra_of_both_axes() -> onnx.ModelProto:
    """The second one's axis, an input, is not read: both were taken along the second axis."""
    return build(
        """(float[2, 4, 8] x) => (float[2, 4, 8, 2] y) {
            m = MatMul (x, w)
            r = Unsqueeze (m, last)
            c = Concat <axis = -1> (r, r)
            s = DFT (c, , three)
            y = DFT (s, , one)
        }""",
        w=normal(8, 8),
        last=np.array([3]),
        one=np.array(1),
        three=np.array(-2),
        opset=20,
        ir_version=9,
    )


def _a_spectrum_counted_from_the_end() -> onnx.ModelProto:
    return build(
        """(float[2, 4, 8] x) => (float[2, 4, 8, 2] y) {
            m = MatMul (x, w)
            s = Reshape (m, shape)
            y = DFT <axis = -2> (s)
        }""",
        w=normal(8, 8),
        shape=np.array([2, 4, 8, 1]),
    )


def _read_by_a_loop() -> onnx.ModelProto:
    """Of known sizes, and yet 0 dB without the bias of zeros."""
    return build(
        """(float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y, float[1, 4, 8, 8] z) {
            c = Conv <pads = [1, 1, 1, 1]> (x, w)
            z = Relu (c)
            y = Loop (trips, go, c) <body = g (int64 i, bool a, float[1, 4, 8, 8] b) => (bool d, float[1, 4, 8, 8] e) {
                d = Identity (a)
                e = Tanh (b)
            }>
        }""",
        w=normal(4, 4, 3, 3),
        trips=np.array(2),
        go=np.array(True),
    )


def _strides_beside_a_function() -> onnx.ModelProto:
    """Quantized, the convolution alone reads its tensor: it would get another shape."""
    return build(
        """(float[1, 4, 8, 8] x) => (float[1, 6, 5, 5] y, float[1, 4, 8, 8] z) {
            r = Relu (x)
            y = Conv <strides = [2, 2], pads = [1, 1, 0, 0]> (r, w)
            z = Tanh (r)
        }""",
        w=normal(6, 4, 1, 1),
    )


def _anchors_for_each_sample() -> onnx.ModelProto:
    """All channels are given the bias of the first one."""
    return build(
        """(float[N, 4, 8, 8] x) => (float[N, 6, 8, 8] y, float[N, 3, 4] z) {
            [first] c = Conv (x, w, b)
            r = Relu (c)
            [second] y = Conv (r, v)
            s = Shape (y)
            n = Slice (s, zero, one, zero)
            repeats = Concat <axis = 0> (n, one, one)
            z = Tile (anchors, repeats)
        }""",
        w=normal(8, 4, 1, 1),
        b=normal(8),
        v=normal(6, 8, 1, 1, seed=1),
        zero=np.array([0]),
        one=np.array([1]),
        anchors=normal(1, 3, 4),
    )


CASES: dict[str, Callable[[], onnx.ModelProto]] = {
    "anchors for each sample": _anchors_for_each_sample,
    "two readers": _two_readers,
    "two readers of a multiple": _two_readers_of_a_multiple,
    "two readers of a product": _two_readers_of_a_product,
    "two readers of a transposed convolution": _two_readers_of_a_transposed_convolution,
    "spatial attention": _spatial_attention,
    "largest of all": _largest_of_all,
    "moved by 3": _moved_by_3,
    "cut off": _cut_off,
    "strides beyond the kernel": _strides_beyond_the_kernel,
    "rows into channels": _rows_into_channels,
    "sums along an axis": _sums_along_an_axis,
    "half a spectrum": _half_a_spectrum,
    "spectra of both axes": _spectra_of_both_axes,
    "a spectrum counted from the end": _a_spectrum_counted_from_the_end,
    "read by a loop": _read_by_a_loop,
    "strides beside a function": _strides_beside_a_function,
    **ROWS,
}
