"""Small models of tokens and rows of which OpenVINO 2026.4.1 computes the plain QDQ form wrongly, or refuses it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx

from tests.models import build, normal

__all__ = ["ROWS"]


def _vector() -> onnx.ModelProto:
    return build("(float[8] x) => (float[4] y) { y = MatMul (x, w) }", w=normal(8, 4))


def _tokens() -> onnx.ModelProto:
    """A class token in front of the patches: OpenVINO refuses the model."""
    return build(
        """(float[1, 8, 16] x) => (float[1, 9, 16] y) {
            c = Concat <axis = 1> (token, x)
            y = MatMul (c, w)
        }""",
        token=normal(1, 1, 16),
        w=normal(16, 16, seed=1),
    )


def _an_axis_behind() -> onnx.ModelProto:
    """A linear layer without a bias, for a product with another: -9 dB, and refused where it is not square."""
    return build(
        """(float[2, 8, 8] x) => (float[2, 8, 8, 1] y) {
            m = MatMul (x, w)
            h = Mul (m, half)
            y = Unsqueeze (h, last)
        }""",
        w=normal(8, 8),
        half=np.float32(0.5),
        last=np.array([3]),
    )


def _an_axis_behind_a_bias_of_zeros() -> onnx.ModelProto:
    return build(
        """(float[2, 8, 8] x) => (float[2, 8, 4, 1] y) {
            m = MatMul (x, w)
            h = Add (m, zeros)
            y = Unsqueeze (h, last)
        }""",
        w=normal(8, 4),
        zeros=np.zeros(4, np.float32),
        last=np.array([3]),
    )


def _scaled_embeddings(scaled: str = "Mul (e, factor)", before: str = "") -> onnx.ModelProto:
    """Self-attention of rows of a table times a scalar."""
    return build(
        f"""(int64[1, 16] i) => (float[1, 2, 16, 16] y) {{
            e = Gather (table, i)
            {before}
            s = {scaled}
            t = Tanh (s)
            q = Tanh (t)
            qh = Reshape (q, heads)
            qt = Transpose <perm = [0, 2, 1, 3]> (qh)
            kh = Reshape (t, heads)
            kt = Transpose <perm = [0, 2, 3, 1]> (kh)
            y = MatMul (qt, kt)
        }}""",
        table=normal(20, 32),
        factor=np.float32(1.5),
        heads=np.array([1, 16, 2, 16]),
    )


def _last_token() -> onnx.ModelProto:
    """It gives a tensor of another shape."""
    return build(
        """(float[2, 8, 16] x) => (float[2, 24] y) {
            m = MatMul (x, w)
            y = Gather <axis = 1> (m, last)
        }""",
        w=normal(16, 24),
        last=np.array(-1),
    )


def _row_of_a_picture() -> onnx.ModelProto:
    """It refuses the model."""
    return build(
        """(float[2, 4, 8, 8] x) => (float[2, 6, 8] y) {
            c = Conv (x, w)
            n = Neg (c)
            y = Gather <axis = 2> (n, first)
        }""",
        w=normal(6, 4, 1, 1),
        first=np.array(0),
    )


def _token_of_a_computed_index() -> onnx.ModelProto:
    """It gives a tensor of another shape."""
    return build(
        """(float[N, T, 16] x) => (float[N, 24] y) {
            m = MatMul (x, w)
            s = Shape (x)
            length = Gather (s, one)
            last = Sub (length, one)
            y = Gather <axis = 1> (m, last)
        }""",
        w=normal(16, 24),
        one=np.array(1),
    )


def _unfolded() -> onnx.ModelProto:
    """It refuses the model."""
    return build(
        """(float[2, 4, 8, 8] x) => (float[2, 6, 3, 8, 10] y) {
            c = Conv (x, w)
            r = Relu (c)
            p = Pad (r, pads)
            y = Gather <axis = 2> (p, rows)
        }""",
        w=normal(6, 4, 1, 1),
        pads=np.array([0, 0, 1, 1, 0, 0, 1, 1]),
        rows=np.arange(3)[:, None] + np.arange(8),
    )


def _mean_of_tokens() -> onnx.ModelProto:
    """Of the second sample it is noise."""
    return build(
        """(float[2, 8, 16] x) => (float[2, 24] y, float[2, 24, 1] z) {
            m = MatMul (x, w)
            y = ReduceMean <axes = [1], keepdims = 0> (m)
            n = MatMul (x, v)
            t = Transpose <perm = [0, 2, 1]> (n)
            r = Relu (t)
            z = GlobalAveragePool (r)
        }""",
        w=normal(16, 24),
        v=normal(16, 24, seed=1),
    )


def _mean_beside_layers() -> onnx.ModelProto:
    """In integers for the layers beside it, it is noise for the second sample."""
    return build(
        """(float[2, 8, 9] x) => (float[2, 1, 9] y, float[2, 8, 9] z, float[2, 1, 16] v, float[2, 9, 4] u) {
            c = Conv <pads = [1, 1]> (x, k, b)
            r = Relu (c)
            y = ReduceMean <axes = [1]> (r)
            t = Tanh (r)
            e = Conv (t, l)
            z = Add (e, r)
            n = Transpose <perm = [0, 2, 1]> (x)
            m = MatMul (n, w)
            h = Mul (m, half)
            v = ReduceMean <axes = [1]> (h)
            u = MatMul (m, o)
        }""",
        k=normal(8, 8, 3),
        b=normal(8),
        l=normal(8, 8, 1, seed=1),
        w=normal(8, 16),
        o=normal(16, 4),
        half=np.float32(0.5),
    )


ROWS: dict[str, Callable[[], onnx.ModelProto]] = {
    "vector": _vector,
    "tokens": _tokens,
    "an axis behind": _an_axis_behind,
    "an axis behind a bias of zeros": _an_axis_behind_a_bias_of_zeros,
    "scaled embeddings": _scaled_embeddings,
    "embeddings of two scalars": lambda: _scaled_embeddings("Mul (factor, f)", "f = Add (e, factor)"),
    "embeddings less a scalar": lambda: _scaled_embeddings("Sub (e, factor)"),
    "embeddings divided by a scalar": lambda: _scaled_embeddings("Div (e, factor)"),
    "last token": _last_token,
    "row of a picture": _row_of_a_picture,
    "token of a computed index": _token_of_a_computed_index,
    "unfolded": _unfolded,
    "mean of tokens": _mean_of_tokens,
    "mean beside layers": _mean_beside_layers,
}
