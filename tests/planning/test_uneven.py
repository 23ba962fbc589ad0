"""Normalizations in front of layers: folded into their weights, unless these would be too coarse then."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from onnxq import Options
from onnxq.prepare import Prepared
from tests.graph.helpers import build, ops, random
from tests.models import f32


@pytest.mark.parametrize("spread", [1.0, 3.0, 1e3])
def test_columns_in_their_own_units_stay_normalized(spread: float) -> None:
    """A table's columns of 1e-3 to 1e3: no scale of the folded weight fits them all."""
    text = (
        "g (float[3,4] x) => (float[3,5] y) "
        "{ r = Relu(x) \n n = BatchNormalization(r, one, one, one, var) \n y = Gemm(n, w) }"
    )
    variance = f32([spread**-2, 1, 1, spread**2])
    prepared = Prepared(build(text, w=random(4, 5), one=np.ones(4, np.float32), var=variance), Options())
    if spread < 1e3:
        assert ops(prepared.model) == ["Relu", "Gemm"]
    else:
        assert ops(prepared.model) == ["Relu", "BatchNormalization", "Gemm"]
        assert any("its channels differ so much in size" in note for note in prepared.notes)


def rounding_noise(w: NDArray[np.float64], power: NDArray[np.float64]) -> float:
    """What 8-bit rounding of each output's weights, (inputs, outputs), adds to an output, for inputs of such power."""
    step = np.abs(w).max(axis=0) / 127
    return float(np.median(power @ np.square(w - np.round(w / step) * step)))


def table(outputs: int, spread: float, largest: float = 1.0, gamma: float = 1.0) -> tuple[NDArray[np.float32], ...]:
    """Weights, (64, outputs), gammas and variances; the first output reads the loudest channels alone, ``largest``."""
    w = random(64, outputs)
    w[:, 0] = np.where(np.arange(64) < 56, 0, largest * random(64, seed=1))
    scales = np.full(64, gamma, np.float32)
    variance = np.geomspace(spread**-2, spread**2, 64).astype(np.float32)
    return w, scales, variance


@pytest.mark.parametrize(
    ("spread", "largest", "gamma", "folds"),
    [(2.0, 1.0, 1.0, True), (100.0, 1.0, 1.0, False), (100.0, 1e6, 1.0, False), (100.0, 1.0, 1e-2, False)],
)
def test_what_is_folded_is_what_rounds_as_well(spread: float, largest: float, gamma: float, folds: bool) -> None:
    w, scales, variance = table(9, spread, largest, gamma)
    factors = scales / np.sqrt(variance + np.float32(1e-5))
    before = rounding_noise(w.astype(np.float64), np.square(scales.astype(np.float64)))
    after = rounding_noise((w * factors[:, None]).astype(np.float64), variance.astype(np.float64))
    assert (after < 16 * before) if folds else (after > 64 * before)
    text = (
        "g (float[3,64] x) => (float[3,9] y) "
        "{ r = Relu(x) \n n = BatchNormalization(r, gamma, zero, zero, var) \n y = Gemm(n, w) }"
    )
    zero = np.zeros(64, np.float32)
    prepared = Prepared(build(text, w=w, gamma=scales, zero=zero, var=variance), Options())
    assert ("BatchNormalization" not in ops(prepared.model)) == folds
    if not folds:  # noise is no larger than what is rounded to zero, steps are
        steps = [float(np.median(np.square(np.abs(v).max(axis=0)))) for v in (w, w * factors[:, None])]
        wider = 10 * np.log10(steps[1] * variance.sum() / (steps[0] * np.square(scales).sum()))
        assert any(f"{wider:.0f} dB coarser" in str(note) for note in prepared.notes)


@pytest.mark.parametrize("groups", [2, 4])
def test_groups_of_channels_have_scales_of_their_own(groups: int) -> None:
    text = (
        "g (float[1,4,3,3] x) => (float[1,4,3,3] y) "
        f"{{ r = Relu(x) \n n = BatchNormalization(r, one, zero, zero, var) \n y = Conv <group = {groups}> (n, w) }}"
    )
    one, zero = np.ones(4, np.float32), np.zeros(4, np.float32)
    variance = f32([1e-6, 1, 1, 1e6])
    model = build(text, w=random(4, 4 // groups, 1, 1), one=one, zero=zero, var=variance)
    prepared = Prepared(model, Options())
    assert ops(prepared.model) == ["Relu", "Conv"]
