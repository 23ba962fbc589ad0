"""What two runtimes give for the same samples."""

from __future__ import annotations

import numpy as np
import pytest

from onnxq.measuring.side_by_side import errors_between
from onnxq.views.parts import accuracy_text
from tests.models import f32, normal


def test_dimensions_of_one_element_may_be_missing() -> None:
    want = normal(1, 3, 4)
    errors, steps = errors_between([({"y": want}, {"y": want[0] + np.float32(0.5)})], {"y": 0.25})
    assert errors["y"].samples == 1 and not errors["y"].reshaped
    assert steps["y"] == pytest.approx(2.0)


def test_outputs_of_other_sizes_are_counted_and_said() -> None:
    """OpenVINO computes a padded convolution of kernel 1 with strides so."""
    want = normal(1, 3, 4)
    other = {"y": want[:, :2]}
    errors, steps = errors_between([({"y": want}, other), ({"y": want}, {"y": want})], {"y": 0.25})
    assert errors["y"].reshaped == 1 and errors["y"].elements == want.size and steps == {"y": 0.0}
    assert accuracy_text(errors["y"]) == "another shape in 1 of 2 samples; of the others exact"
    errors, steps = errors_between([({"y": want}, other)], {"y": 0.25})
    assert accuracy_text(errors["y"]) == "another shape in 1 of 1 sample" and not steps


def test_what_is_no_number_on_one_side_is_infinitely_many_steps_away() -> None:
    want = f32([1, np.inf, np.nan, 2])
    assert errors_between([({"y": want}, {"y": want})], {"y": 0.1})[1] == {"y": 0.0}
    for got in (f32([1, np.inf, np.nan, np.nan]), f32([1, 3, np.nan, 2])):
        fine = {"y": want}
        assert errors_between([(fine, fine), (fine, {"y": got}), (fine, fine)], {"y": 0.1})[1] == {"y": np.inf}
