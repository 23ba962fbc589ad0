"""Sizes of inputs as they may be written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnxq import OptionError, Options
from onnxq.options.config import to_toml
from onnxq.options.shapes import sizes_of


@pytest.mark.parametrize(
    "given",
    [
        "x=1x3x*x8",
        ["x=1,3,*,8"],
        {"x": (1, 3, None, 8)},
        {"x": [np.int64(1), 3, None, 8]},
        {"x": "1x3x*x8"},
    ],
)
def test_all_ways_are_one(given: Any) -> None:
    assert Options(shapes=given).shapes == ("x=1x3x*x8",)
    assert sizes_of("x=1x3x*x8") == ("x", (1, 3, None, 8))


def test_a_name_may_hold_what_stands_between() -> None:
    assert Options(shapes={"a=b:0": (1, 2), "batch": 4}).shapes == ("a=b:0=1x2", "batch=4")
    assert sizes_of("a=b:0=1x2") == ("a=b:0", (1, 2))


@pytest.mark.parametrize(
    "given",
    ["x", "=1", "x=", "x=1x", "x=-1x3", "x=1x0", "x=9223372036854775808", {"x": (1.5,)}, 7, [3], ["x=1", "x=2"]],
)
def test_others_are_refused(given: Any) -> None:
    with pytest.raises(OptionError, match=r"^shapes: "):
        Options(shapes=given)


def test_they_are_written_to_a_configuration_and_read_from_it(tmp_path: Path) -> None:
    options = Options(shapes={"x": (1, 3, None, 8), "batch": 1})
    (tmp_path / "c.toml").write_text(to_toml(options, "of a test"))
    assert Options.from_toml(tmp_path / "c.toml") == options
    (tmp_path / "t.toml").write_text("[shapes]\nx = [1, 3, 8]\nbatch = 1\n")
    assert Options.from_toml(tmp_path / "t.toml").shapes == ("x=1x3x8", "batch=1")
