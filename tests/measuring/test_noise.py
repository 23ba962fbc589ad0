"""Noise of candidates, sample by sample: rows of all candidates stand for the same samples."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from onnxq.calibration.statistics import KeptSample
from onnxq.measuring import noise
from onnxq.options import Options

Array = np.ndarray[Any, np.dtype[Any]]


class Runs:
    """A session that gives what it is told."""

    def __init__(self, given: list[Array]) -> None:
        self._given = iter(given)

    def run(self, feeds: object) -> dict[str, Array]:
        return {"y": next(self._given)}


def measured(monkeypatch: pytest.MonkeyPatch, wanted: list[Array], given: list[Array]) -> noise.OutputNoise:
    monkeypatch.setattr(noise, "simulation", lambda quantized, **_: Runs(given))
    monkeypatch.setattr(noise, "far_apart", lambda model, samples: {})
    samples = [KeptSample(index, {}, {"y": values}) for index, values in enumerate(wanted)]
    found = noise.output_noise(SimpleNamespace(model=None), samples, Options())  # type: ignore[arg-type]
    assert found is not None
    return found["y"]


def test_another_shape_is_noise_and_no_row_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [np.full(4, 3.0, np.float32), np.full(4, 1.0, np.float32), np.zeros(0, np.float32)]
    found = measured(monkeypatch, wanted, [wanted[0][:2], wanted[1] + np.float32(0.5), wanted[2]])
    assert found.signal == pytest.approx(10 / 3) and found.reshaped == 1
    assert found.noise.tolist() == pytest.approx([4 * 10 / 3, 0.25, 0.0])


def test_what_the_float_model_masks_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As :class:`onnxq.measuring.metrics.Errors` does: masked scores are infinite, or as good as."""
    wanted = [np.array([1.0, -np.inf, -3e38, 3.0], np.float32), np.full(4, -np.inf, np.float32)]
    given = [np.array([1.5, -np.inf, 0.0, 3.0], np.float32), wanted[1]]
    found = measured(monkeypatch, wanted, given)
    assert found.noise.tolist() == [0.125, 0.0]
    assert found.signal == 2.5


def test_what_is_no_number_in_the_result_alone_is_infinite_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [np.ones(2, np.float32), np.ones(2, np.float32)]
    found = measured(monkeypatch, wanted, [np.array([1.0, np.nan], np.float32), np.array([np.inf, 1.0], np.float32)])
    assert found.noise.tolist() == [np.inf, np.inf]


def test_something_where_nothing_should_be(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = np.zeros(0, np.float32)
    found = measured(monkeypatch, [nothing, nothing], [np.ones(2, np.float32), nothing])
    assert found.noise.tolist() == [np.inf, 0.0]
