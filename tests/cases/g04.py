"""Group 4: shapes that vary or are unknown, empty tensors, tensors without dimensions."""

from __future__ import annotations

import numpy as np
import onnx

from tests.cases.case import Given, case
from tests.models import build, f32, feeds_for, images, normal


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


def normal_feed(length: int, seed: int) -> dict[str, np.ndarray]:
    return {"x": normal(2, length, 8, seed=seed, scale=1)}


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


@case("G4")
def variable_shape_sequences() -> Given:
    """Every sample has another length."""
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
    return Given(model, [normal_feed(t, seed=t) for t in (5, 1, 17, 3)])


@case("G4", asked={"range": "percentile:99.9"}, least=None)
def scalar_output_percentile() -> Given:
    """An output without dimensions, calibrated with percentiles."""
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y, float mean) {
            y = Conv (x, w)
            mean = ReduceMean <keepdims = 0> (y)
        }""",
        w=normal(4, 3, 3, 3),
    )
    return Given(model, images(1, 3, 8, 8))


@case("G4")
def quantized_scalar() -> Given:
    """An operand without dimensions, made at run time."""
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) {
            c = Conv (x, w)
            m = ReduceMax <keepdims = 0> (c)
            [scale] y = Mul (c, m)
        }""",
        w=normal(4, 3, 3, 3),
    )
    return Given(model, images(1, 3, 8, 8))


@case("G4")
def scalar_input() -> Given:
    """A graph input without dimensions."""
    model = build(
        "(float[1, 3, 8, 8] x, float k) => (float[1, 4, 6, 6] y) { c = Conv (x, w)  y = Mul (c, k) }",
        w=normal(4, 3, 3, 3),
    )
    feeds = [{**sample, "k": f32(1 + i / 4)} for i, sample in enumerate(images(1, 3, 8, 8))]
    return Given(model, feeds)


@case("G4", least=None)
def unknown_shape_after_nonmaxsuppression() -> Given:
    """How many rows come out of NonMaxSuppression is not known."""
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
    return Given(model, feeds)


@case("G4")
def unknown_shape_after_nonzero() -> Given:
    """How many rows come out of NonZero is not known."""
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
    return Given(model, images(6, 8))


@case("G4")
def rank_differs_from_sample_to_sample() -> Given:
    """The data says how many dimensions a tensor has."""
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
    return Given(model, feeds)


@case("G4", refuse=r"\bx\b")
def batch_1_and_data_of_batch_8() -> Given:
    """The input is fixed to batch 1, the data has batch 8: an error that names the input."""
    model = build("(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) { y = Conv (x, w) }", w=normal(4, 3, 3, 3))
    return Given(model, images(8, 3, 8, 8))


@case("G4")
def broadcast_of_size_one() -> Given:
    """Operands that broadcast in several dimensions."""
    model = build(
        """(float[2, 4, 1, 6] x, float[1, 5, 1] z) => (float[2, 4, 5, 6] y) {
            a = Mul (x, z)
            [m] y = MatMul (a, w)
        }""",
        w=normal(6, 6),
    )
    return Given(model, feeds_for(model))


@case("G4", asked={"range": "entropy"}, least=15)
def variable_shape_entropy() -> Given:
    """Pictures of different sizes, calibrated with the entropy method."""
    return Given(of_any_size(), sized((1, 8, 8), (1, 16, 9), (3, 7, 20), (1, 32, 32)))


@case("G4")
def empty_sample_among_others() -> Given:
    """A sample of batch 0."""
    return Given(of_any_size(), sized((1, 8, 8), (0, 8, 8), (2, 8, 8)))


@case("G4", refuse="flatten")
def reshape_to_batch_1_and_data_of_batch_8() -> Given:
    """A Reshape fixed to batch 1, one sample of batch 8: an error that names the node."""
    return Given(fixed_to_one(), [*images(1, 3, 8, 8, samples=2), *images(8, 3, 8, 8, samples=1)])
