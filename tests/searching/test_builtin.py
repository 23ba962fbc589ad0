"""The measure without one of the user's: samples of another shape count as wrong, and are told once."""

from __future__ import annotations

import logging
import re
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from onnxq.ort.inputs import InputInfo
from onnxq.searching.builtin import agreement_metric
from onnxq.searching.user_metric import Metric

Array = NDArray[Any]

CLASSES = InputInfo("y", np.dtype(np.float32), ("N", 3))
VALUES = InputInfo("y", np.dtype(np.float32), (1, "N", 3))


def value(metric: Metric, given: list[Array]) -> float:
    """What the measure gives a model of these outputs."""
    outputs = iter(given)
    return metric(lambda feeds: {"y": next(outputs)}, "a model")  # type: ignore[arg-type]


def measure(info: InputInfo, wanted: list[Array]) -> Metric:
    return agreement_metric([info], lambda: (({}, {"y": values}) for values in wanted))


def test_rows_of_another_number_agree_in_none() -> None:
    rows = [np.eye(3, dtype=np.float32), np.eye(3, dtype=np.float32)[:1]]
    metric = measure(CLASSES, rows)
    assert value(metric, rows) == 1.0
    assert value(metric, [rows[0][:2], rows[1]]) == 0.25
    assert value(metric, [rows[0], np.zeros((0, 3), np.float32)]) == 0.75
    assert value(measure(CLASSES, [rows[0][:0]]), [rows[0][:0]]) == 1.0
    assert value(measure(CLASSES, [rows[0][:0]]), [rows[0]]) == 0.0


def test_values_of_another_shape_are_noise_and_never_none() -> None:
    values = [np.ones((1, 4, 3), np.float32), np.ones((1, 4, 3), np.float32)]
    metric = measure(VALUES, values)
    assert value(metric, values) == 1.0
    assert value(metric, [values[0], values[1][:, :2]]) == pytest.approx(1 - 4 / 2)
    assert value(metric, [v[:, :2] for v in values]) == pytest.approx(1 - 4)


def test_a_large_mean_hides_no_error() -> None:
    varies = np.tile(np.array([1.0, -1.0], np.float32), 6).reshape(1, 4, 3)
    wrong = np.tile(np.array([0.3, 0.3, -0.3, -0.3], np.float32), 3).reshape(1, 4, 3)
    assert value(measure(VALUES, [varies + 10]), [varies + 10 + wrong]) == pytest.approx(1 - 0.09, abs=1e-4)
    assert value(measure(VALUES, [varies]), [varies + 0.3]) == pytest.approx(1 - 0.09, abs=1e-4), "a shift is an error"
    constant = np.full((1, 4, 3), 100, np.float32)
    assert value(measure(VALUES, [constant]), [constant + wrong]) > 1 - 1e-4, "nothing varies"


def test_it_is_said_once_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    values = [np.ones((1, 4, 3), np.float32)]
    metric = measure(VALUES, values)
    with caplog.at_level(logging.WARNING, logger="onnxq"):
        value(metric, values)
        assert not caplog.messages
        value(metric, [values[0][:, :1]])
        value(metric, [values[0][:, :2]])
    (said,) = caplog.messages
    assert re.search(r"'y' had another shape.*counts as wrong.*up to what selects.*--metric", said)
