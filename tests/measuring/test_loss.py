"""What is lost against the float model, in a runtime and in simulation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxq.measuring.loss import Loss, losses

RIGHT = np.linspace(-1, 1, 101, dtype=np.float32)


def test_both_are_measured_against_the_float_model() -> None:
    found = losses([{"y": RIGHT}] * 2, [{"y": RIGHT * 0.99}] * 2, [{"y": RIGHT * 0.9}] * 2)
    assert math.isclose(found["y"].simulation, 40, abs_tol=0.01) and math.isclose(found["y"].runtime, 20, abs_tol=0.01)


def test_outputs_of_another_shape_and_integers_have_none() -> None:
    floats: dict[str, NDArray[Any]] = {"y": RIGHT, "i": np.arange(3)}
    other: dict[str, NDArray[Any]] = {"y": RIGHT[:-1], "i": np.arange(3)}
    assert not losses([floats], [floats], [other])
    assert not losses([floats] * 2, [floats] * 2, [floats, other]), "one of the samples is enough"
    assert not losses([floats] * 2, [other, floats], [floats] * 2)
    assert losses([floats] * 2, [floats] * 2, [floats] * 2).keys() == {"y"}


def test_what_counts_as_the_loss_of_quantizing() -> None:
    assert Loss(38, 40).is_that_of_quantizing and Loss(50, 40).is_that_of_quantizing
    assert Loss(math.inf, math.inf).is_that_of_quantizing
    assert not Loss(30, 40).is_that_of_quantizing and not Loss(30, math.inf).is_that_of_quantizing
    assert not Loss(5, 6).is_that_of_quantizing, "nothing is left to lose"
    assert Loss(-math.inf, math.inf).to_dict() == {"runtime": "-inf", "simulation": "inf"}
