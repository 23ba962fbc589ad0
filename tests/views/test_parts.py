"""How accuracy is told: what a mean hides, and what is nothing but rounding."""

from __future__ import annotations

import numpy as np

from onnxq.measuring.metrics import ErrorMeter
from onnxq.views.parts import accuracy_text
from tests.models import f32


def said(reference: np.ndarray, result: np.ndarray) -> str:
    meter = ErrorMeter()
    meter.update(reference, result)
    return accuracy_text(meter.result())


def test_a_mean_that_hides_the_loss_is_told_with_what_varies() -> None:
    rng = np.random.default_rng(0)
    signal, error = rng.standard_normal((2, 4096)).astype(np.float32)
    assert said(signal + 10, signal + 10 + error / 10) == "40.0 dB, 19.9 dB of what varies"
    assert said(signal, signal + error / 10) == "19.9 dB"


def test_rounding_of_the_last_bit_is_no_loss() -> None:
    signal = np.random.default_rng(0).standard_normal(4096)
    assert said(signal, signal * (1 + 1e-15)) == "exact but for rounding of the last bit"
    assert said(f32(signal), f32(signal)) == "exact"
    assert said(signal, signal * (1 + 1e-6)).endswith(" dB")
