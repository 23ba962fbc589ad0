from __future__ import annotations

import numpy as np
import pytest

from onnxq.calibration.usable import Usable

GOOD, NAN, MASK = np.ones(4, np.float32), np.full(4, np.nan, np.float32), np.array([0, -np.inf], np.float32)


@pytest.mark.parametrize(
    ("samples", "usable"),
    [
        ([(GOOD, GOOD)], True),
        ([(GOOD, NAN)], True),  # the model is at fault, not the data
        ([(MASK, GOOD)], True),
        ([(NAN, GOOD)], True),  # a model made for missing values
        ([(NAN, NAN)], False),
        ([(MASK, NAN), (NAN, NAN)], False),
        ([(NAN, NAN), (GOOD, GOOD), (NAN, NAN)], True),
        ([(NAN, np.arange(4))], False),  # whole numbers say nothing of what they were made of
        ([(np.arange(4), NAN)], True),
        ([(np.array(["a"]), NAN)], True),
        ([(MASK, np.arange(4))], True),  # then it is what was read that counts
        ([(MASK, GOOD[:0])], True),
    ],
)
def test_one_usable_sample_is_enough(samples: list[tuple[np.ndarray, np.ndarray]], usable: bool) -> None:
    looked = Usable()
    for index, (x, y) in enumerate(samples):
        looked.look({"x": x}, {"y": y}, 10 + index)
    assert (looked.error is None) == usable
    if looked.error is not None:
        assert looked.error.where == "data, input 'x', first in sample 10"


@pytest.mark.parametrize("outputs", [(GOOD, NAN), (NAN, GOOD)])
def test_one_output_with_a_number_is_enough(outputs: tuple[np.ndarray, np.ndarray]) -> None:
    looked = Usable()
    looked.look({"x": NAN}, dict(zip("yz", outputs, strict=True)), 0)
    assert looked.error is None
