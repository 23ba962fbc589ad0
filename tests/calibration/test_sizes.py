"""Sizes of tensors are those of the typical sample, in whatever order the samples come."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

import onnxq
from onnxq.calibration.sizes import other_sized, sizes_on, typical
from onnxq.calibration.statistics import KeptSample, Statistics
from tests.models import build, normal


def sample(index: int, size: int) -> KeptSample:
    return KeptSample(index, {"x": np.zeros((1, 3, size, size), np.float32), "k": np.zeros(1, np.int64)}, {})


def free() -> ir.Model:
    return ir.from_proto(
        build(
            "(float[1, 3, H, W] x) => (float[1, 8, H, W] y) { [c] y = Conv <pads = [1, 1, 1, 1]> (x, w) }",
            w=normal(8, 3, 3, 3),
        )
    )


@pytest.mark.parametrize("order", [(4, 8, 8, 8, 16), (16, 8, 4, 8, 8), (8, 8, 16, 4, 8)])
def test_the_typical_sample_is_of_median_size(order: tuple[int, ...]) -> None:
    samples = [sample(index, size) for index, size in enumerate(order)]
    assert typical(samples) is samples[order.index(8)]
    assert sizes_on(free(), Statistics("", kept=samples))["y"] == 8 * 8 * 8


def test_of_samples_alike_the_first_is_typical_and_without_any_nothing_is_known() -> None:
    samples = [sample(index, 4) for index in range(3)]
    assert typical(samples) is samples[0]
    assert sizes_on(free(), Statistics("")) == {}


def test_what_is_quantized_does_not_depend_on_which_sample_comes_first() -> None:
    model = build(
        """(float[1, 3, H, W] x) => (float[1, 8, H, W] y) {
            [c1] a = Conv <pads = [1, 1, 1, 1]> (x, w1)
            b = Relu (a)
            [c2] c = Conv (b, w2)
            d = Relu (c)
            [c3] y = Conv <pads = [1, 1, 1, 1]> (d, w3)
        }""",
        w1=normal(64, 3, 3, 3),
        w2=normal(64, 64, 1, 1),
        w3=normal(8, 64, 3, 3),
    )
    rng = np.random.default_rng(0)
    data = [{"x": rng.standard_normal((1, 3, s, s)).astype(np.float32)} for s in [1] * 4 + [2] * 4 + [32] * 24]
    plans = [onnxq.quantize(model, feeds).plan.quantized for feeds in (data, data[::-1])]
    assert list(plans[0]) == ["c2", "c3"]
    assert plans[1] == plans[0]


CUT = """(float[64, 8] x, int64[1] n) => (float[32, R] y) {
    cut = Slice (x, zero, n, zero)
    a = MatMul (cut, w)
    y = Transpose <perm = [1, 0]> (a)
}"""


def test_where_no_shape_is_inferred_what_was_counted_tells() -> None:
    """The length is a number that the data has: 9 rows in the typical sample, and on average."""
    model = ir.from_proto(build(CUT, w=normal(8, 32), zero=np.zeros(1, np.int64)))
    rng, rows = np.random.default_rng(0), [9, 3, 9, 15, 9, 3, 9, 15]
    data = [{"x": rng.standard_normal((64, 8)).astype(np.float32), "n": np.array([n])} for n in rows]
    statistics = onnxq.calibrate(model, data)
    sizes = sizes_on(model, statistics)
    assert "cut" not in sizes_on(model, replace(statistics, tensors={}))
    assert (sizes["cut"], sizes["a"], sizes["y"]) == (9 * 8, 9 * 32, 9 * 32)


def test_what_a_loop_counts_is_of_one_turn() -> None:
    """Five turns of a body, of whose tensors shapes tell the one and the data the others."""
    text = """(float[1, 8] x, int64[1] n) => (float[1, 8] y) {
        go = Constant <value = bool {1}> ()
        turns = Constant <value = int64 {5}> ()
        y = Loop <body = body (int64 i, bool c, float[1, 8] s) => (bool d, float[1, 8] t) {
            d = Identity (c)
            m = MatMul (s, w)
            cut = Slice (m, zero, n, zero)
            a = MatMul (cut, v)
            b = Relu (a)
            r = ReduceMean <axes = [1]> (b)
            t = Mul (s, r)
        }> (turns, go, x)
    }"""
    model = ir.from_proto(build(text, w=normal(8, 8), v=normal(8, 32), zero=np.zeros(1, np.int64)))
    rng = np.random.default_rng(0)
    data = [{"x": rng.standard_normal((1, 8)).astype(np.float32), "n": np.array([1])} for _ in range(4)]
    statistics = onnxq.calibrate(model, data)
    assert statistics.tensors["a"].elements == 4 * 5 * 32
    sizes = sizes_on(model, statistics)
    assert (sizes["m"], sizes["a"]) == (8, 32)


def step(index: int, tokens: int, past: int) -> KeptSample:
    return KeptSample(
        index, {"ids": np.zeros((1, tokens), np.int64), "past": np.zeros((1, 2, past, 4), np.float32)}, {}
    )


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([(1, 30), (1, 31), (20, 0), (54, 0), (1, 50)], (3, "ids")),
        ([(20, 0), (24, 0), (1, 20), (1, 50), (22, 0), (18, 0), (19, 0)], (3, "past")),
        ([(1, 30), (1, 60), (1, 90)], None),
        ([(16, 0), (40, 0), (60, 0)], None),
        ([(7, 0)], None),
    ],
)
def test_a_prompt_among_single_tokens_is_of_another_size(
    steps: list[tuple[int, int]], expected: tuple[int, str] | None
) -> None:
    """Or a single token with a cache among prompts; a sequence that is twice as long is not."""
    found = other_sized([step(index + 7, *sizes) for index, sizes in enumerate(steps)])
    assert (found and (found[0].index - 7, found[1])) == expected
