"""Operators that reorder, cut, join and index give exactly what onnxruntime gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.models import f32, normal

pytest.importorskip("torch", reason="the extra torch is not installed")

from tests.torch.ops.helpers import case

X = normal(2, 3, 4, scale=1.0)


def i64(*numbers: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(numbers, np.int64)


@pytest.mark.parametrize(
    ("text", "constants"),
    [
        ("(float[2, 3, 4] x) => (float[2, 12] y) { y = Reshape (x, s) }", {"s": i64(0, -1)}),
        ("(float[2, 3, 4] x) => (float[6, 4] y) { y = Flatten <axis = 2> (x) }", {}),
        ("(float[2, 3, 4] x) => (float[2, 12] y) { y = Flatten <axis = -2> (x) }", {}),
        ("(float[2, 3, 4] x) => (float[4, 2, 3] y) { y = Transpose <perm = [2, 0, 1]> (x) }", {}),
        ("(float[2, 3, 4] x) => (float[4, 3, 2] y) { y = Transpose (x) }", {}),
        ("(float[2, 3, 4] x) => (float[2, 1, 3, 4, 1] y) { y = Unsqueeze (x, a) }", {"a": i64(1, -1)}),
        ("(float[2, 3, 4] x) => (float[2, 5, 3, 4] y) { z = Unsqueeze (x, a)\n y = Expand (z, s) }",
         {"a": i64(1), "s": i64(5, 1, 1)}),
        ("(float[2, 3, 4] x) => (float[2, 6, 4] y) { y = Concat <axis = -2> (x, x) }", {}),
        ("(float[2, 3, 4] x) => (float[4, 3, 8] y) { y = Tile (x, r) }", {"r": i64(2, 1, 2)}),
        ("(float[2, 3, 4] x) => (float[2, 3, 2] y) { y = Slice (x, s, e, a) }",
         {"s": i64(1), "e": i64(-1), "a": i64(2)}),
        ("(float[2, 3, 4] x) => (float[2, 2, 4] y) { y = Slice (x, s, e, a, t) }",
         {"s": i64(-1), "e": i64(-9999), "a": i64(1), "t": i64(-2)}),
        ("(float[2, 3, 4] x) => (float[2, 0, 4] y) { y = Slice (x, s, e, a) }",
         {"s": i64(3), "e": i64(9), "a": i64(1)}),
        ("(float[2, 3, 4] x) => (float[2, 2, 2, 4] y) { y = Gather <axis = 1> (x, i) }",
         {"i": np.array([[0, -1], [2, 1]], np.int64)}),
        ("(float[2, 3, 4] x) => (float[3, 4] y) { y = Gather (x, i) }", {"i": np.array(-1, np.int64)}),
        ("(float[2, 3, 4] x) => (float[2, 1, 4] y) { y = GatherElements <axis = 1> (x, i) }",
         {"i": np.array([[[0, 1, 2, -1]], [[1, 1, 0, 0]]], np.int64)}),
        ("(float[2, 3, 4] x) => (float[2, 4] y) { y = GatherND (x, i) }", {"i": np.array([[0, 1], [1, 2]], np.int64)}),
        ("(float[2, 3, 4] x) => (float[2, 4] y) { y = GatherND <batch_dims = 1> (x, i) }",
         {"i": np.array([[0], [2]], np.int64)}),
        ("(float[2, 3, 4] x) => (float[2, 3, 4] y) { y = ScatterElements <axis = 2> (x, i, u) }",
         {"i": np.array([[[0], [1], [-1]]], np.int64), "u": normal(1, 3, 1)}),
        ('(float[2, 3, 4] x) => (float[2, 3, 4] y) { y = ScatterElements <axis = 2, reduction = "add"> (x, i, u) }',
         {"i": np.array([[[0, 0], [1, 1], [3, 3]]], np.int64), "u": normal(1, 3, 2)}),
        ("(float[2, 3, 4] x) => (float[2, 3, 4] y) { y = ScatterND (x, i, u) }",
         {"i": np.array([[0, 1], [1, 2]], np.int64), "u": normal(2, 4)}),
        ("(float[2, 3, 4] x) => (float[2, 4, 7] y) { y = Pad (x, p, v) }",
         {"p": i64(0, 1, 2, 0, 0, 1), "v": f32(1.5)}),
        ('(float[2, 3, 4] x) => (float[2, 3, 7] y) { y = Pad <mode = "reflect"> (x, p) }',
         {"p": i64(0, 0, 2, 0, 0, 1)}),
        ('(float[2, 3, 4] x) => (float[2, 5, 3] y) { y = Pad <mode = "edge"> (x, p) }', {"p": i64(0, 1, -1, 0, 1, 0)}),
        ("(float[2, 3, 4] x) => (float[2, 3, 6] y) { y = Pad (x, p, , a) }", {"p": i64(1, 1), "a": i64(2)}),
        ("(float[2, 3, 4] x) => (float[2, 3, 4] y) { y = Trilu <upper = 0> (x) }", {}),
        ("(float[2, 3, 4] x) => (float[2, 3, 4] y) { y = Trilu (x, k) }", {"k": np.array(1, np.int64)}),
        ("(float[2, 3, 4] x) => (int64[3] y) { y = Shape (x) }", {}),
        ("(float[2, 3, 4] x) => (int64[1] y) { y = Shape <start = 1, end = -1> (x) }", {}),
        ("(float[2, 3, 4] x) => (int64 y) { y = Size (x) }", {}),
        ("(float[2, 3, 4] x) => (int64[2, 3, 4] y) { s = Shape (x)\n"
         " y = ConstantOfShape <value = int64[1] {7}> (s) }", {}),
        ("(float[2, 3, 4] x) => (float[2, 3, 4] y) { y = Dropout (x) }", {}),
    ],
)  # fmt: skip
def test_moves(text: str, constants: dict[str, Any]) -> None:
    case(text, {"x": X}, **constants)


def test_squeezes() -> None:
    text = "(float[1, 3, 1] x) => (float[3, 1] y) { y = Squeeze (x, a) }"
    case(text, {"x": normal(1, 3, 1)}, a=i64(0))
    case("(float[1, 3, 1] x) => (float[3] y) { y = Squeeze (x) }", {"x": normal(1, 3, 1)})
    case("(float[1, 3, 1] x) => (float[1, 3] y) { y = Squeeze <axes = [-1]> (x) }", {"x": normal(1, 3, 1)}, opset=11)


def test_splits() -> None:
    text = "(float[2, 3, 4] x) => (float[2, 3, 1] a, float[2, 3, 3] b) { a, b = Split <axis = 2> (x, s) }"
    case(text, {"x": X}, s=i64(1, 3))
    text = "(float[2, 3, 4] x) => (float[2, 2, 4] a, float[2, 1, 4] b) { a, b = Split <axis = 1, num_outputs = 2> (x) }"
    case(text, {"x": X})


def test_numbers_from_numbers() -> None:
    case("(int64 n) => (int64[N] y) { y = Range (z, n, d) }", {"n": np.array(7, np.int64)},
         z=np.array(1, np.int64), d=np.array(2, np.int64))  # fmt: skip
    case("(int64[3] x) => (float[3, 4] y) { y = OneHot (x, d, v) }", {"x": i64(0, -1, 2)},
         d=np.array(4, np.int64), v=f32([0, 5]))  # fmt: skip
    case("(float[2, 3, 4] x) => (int64[3, N] y) { m = Round (x)\n y = NonZero (m) }", {"x": X})


def test_largest_numbers() -> None:
    text = "(float[2, 3, 4] x) => (float[2, 3, 2] v, int64[2, 3, 2] i) { v, i = TopK (x, k) }"
    case(text, {"x": X}, k=i64(2))
    text = "(float[2, 3, 4] x) => (float[2, 1, 4] v, int64[2, 1, 4] i) { v, i = TopK <axis = 1, largest = 0> (x, k) }"
    case(text, {"x": X}, k=i64(1))


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_and_space(mode: str) -> None:
    text = f'(float[1, 8, 3, 2] x) => (float[1, 2, 6, 4] y) {{ y = DepthToSpace <blocksize = 2, mode = "{mode}"> (x) }}'
    case(text, {"x": normal(1, 8, 3, 2)})
    text = "(float[1, 2, 6, 4] x) => (float[1, 8, 3, 2] y) { y = SpaceToDepth <blocksize = 2> (x) }"
    case(text, {"x": normal(1, 2, 6, 4)})
