"""What two runtimes give for the same samples."""

from __future__ import annotations

import numpy as np
import pytest

from onnxq.measuring.side_by_side import errors_between, steps_between
from onnxq.views.parts import accuracy_text
from tests.models import f32, normal


def test_dimensions_of_one_element_may_be_missing() -> None:
    want = normal(1, 3, 4)
    wanted, got = [{"y": want}], [{"y": want[0] + np.float32(0.5)}]
    errors = errors_between(wanted, got)
    assert errors["y"].samples == 1 and not errors["y"].reshaped
    assert steps_between(wanted, got, {"y": 0.25})["y"] == pytest.approx(2.0)


def test_outputs_of_other_sizes_are_counted_and_said() -> None:
    """OpenVINO computes a padded convolution of kernel 1 with strides so."""
    want = normal(1, 3, 4)
    same, other = {"y": want}, {"y": want[:, :2]}
    errors = errors_between([same, same], [other, same])
    assert errors["y"].reshaped == 1 and errors["y"].elements == want.size
    assert steps_between([same, same], [other, same], {"y": 0.25}) == {"y": 0.0}
    assert accuracy_text(errors["y"]) == "another shape in 1 of 2 samples; of the others exact"
    assert accuracy_text(errors_between([same], [other])["y"]) == "another shape in 1 of 1 sample"
    assert not steps_between([same], [other], {"y": 0.25})


def test_what_is_no_number_on_one_side_is_infinitely_many_steps_away() -> None:
    fine = {"y": f32([1, np.inf, np.nan, 2])}
    assert steps_between([fine], [fine], {"y": 0.1}) == {"y": 0.0}
    for got in (f32([1, np.inf, np.nan, np.nan]), f32([1, 3, np.nan, 2])):
        assert steps_between([fine] * 3, [fine, {"y": got}, fine], {"y": 0.1}) == {"y": np.inf}
