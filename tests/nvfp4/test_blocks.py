"""Scales of blocks: numbers of E4M3 times a power of two, better than those of the largest magnitude over 6."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from onnxq.nvfp4.recipe import Nvfp4
from onnxq.weight_only.float_blocks import unit_of
from onnxq.weight_only.grid import Coded, decode, nearest

SPEC = Nvfp4().spec()
Floats = NDArray[np.float32]


def drawn(kind: str, rows: int = 256, columns: int = 512) -> Floats:
    random = np.random.default_rng(0)
    shape = rows, columns
    return np.asarray(random.standard_normal(shape) if kind == "normal" else random.standard_t(4, shape), np.float32)


def by_largest(blocks: NDArray[np.float64], most: float, held: float) -> NDArray[np.float64]:
    """What a scale does that lets the largest magnitude of a block stand for ``most``; ``held``: of the tensor in E4M3.

    As in NVIDIA's Model Optimizer, with 6 and 448; with ml_dtypes.
    """
    unit = np.abs(blocks).max() / 6 / held
    size = np.abs(blocks).max(axis=2, keepdims=True)
    scale = (size / most / unit).astype(ml_dtypes.float8_e4m3fn).astype(np.float64) * unit
    numbers = np.clip(blocks / scale, -6, 6).astype(ml_dtypes.float4_e2m1fn)
    return np.asarray(numbers.astype(np.float64) * scale)


def error(blocks: NDArray[np.float64], made: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.square(blocks - made).sum(axis=2))


def coded(weight: Floats) -> Coded:
    return nearest(weight / np.float32(unit_of(float(np.abs(weight).max()))), SPEC)


@pytest.mark.parametrize(("kind", "gain"), [("normal", 1.2), ("heavy", 0.8)])
def test_less_error_than_the_largest_over_6_and_four_over_six(kind: str, gain: float) -> None:
    weight = drawn(kind)
    unit = unit_of(float(np.abs(weight).max()))
    blocks = weight.astype(np.float64).reshape(len(weight), -1, 16)
    ours = error(blocks, decode(coded(weight)).astype(np.float64).reshape(blocks.shape) * unit)
    plain = error(blocks, by_largest(blocks, 6, 448))
    either = np.minimum(error(blocks, by_largest(blocks, 6, 256)), error(blocks, by_largest(blocks, 4, 256)))
    assert 10 * math.log10(plain.sum() / ours.sum()) > gain
    assert 10 * math.log10(either.sum() / ours.sum()) > 0.35


def test_scales_are_numbers_of_e4m3_and_every_weight_is_at_its_nearest() -> None:
    weight = drawn("heavy")
    made, unit = coded(weight), unit_of(float(np.abs(weight).max()))
    scale = 2 * made.scale
    np.testing.assert_array_equal(scale.astype(ml_dtypes.float8_e4m3fn).astype(np.float32), scale)
    assert scale.min() > 0 and scale.max() <= 448
    ratio = weight.reshape(len(weight), -1, 16) / np.float32(unit) / scale[..., None]
    wanted = np.clip(ratio, -6, 6).astype(ml_dtypes.float4_e2m1fn).astype(np.float32)
    np.testing.assert_array_equal(made.codes.reshape(wanted.shape), 2 * wanted)


@pytest.mark.parametrize("largest", [0.0, 1e-45, 1e-38, 1.0, 1535.9, 1536.0, 1536.1, 3.4e38])
def test_a_unit_is_a_power_of_two_that_leaves_room(largest: float) -> None:
    unit = unit_of(largest)
    assert math.frexp(unit)[0] == 0.5
    assert min(largest * 1.5, 3.4e38) <= unit * 6 * 448
    if largest > 1e-30:
        assert largest > unit * 6 * 128
    assert np.float32(unit) * np.float32(2.0**-9) * np.float32(0.5) >= np.finfo(np.float32).tiny


@pytest.mark.parametrize("size", [0.0, 1e-30, 1.0, 1e30])
def test_blocks_of_zeros_and_of_any_size(size: float) -> None:
    weight = drawn("normal", 8, 64) * np.float32(size)
    weight[:, 16:32] = 0
    weight[0] *= np.float32(1e-7)
    unit = np.float32(unit_of(float(np.abs(weight).max())))
    made = decode(nearest(weight / unit, SPEC)) * unit
    assert np.isfinite(made).all() and not made[:, 16:32].any()
    noise = np.square(made[1:] - weight[1:], dtype=np.float64).sum()
    assert noise <= 0.02 * np.square(weight[1:], dtype=np.float64).sum()
