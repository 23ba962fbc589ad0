"""Algorithms as the options name them."""

from __future__ import annotations

import pytest

from onnxq.algorithm_choice import chosen
from onnxq.errors import OptionError


def test_a_parameter_that_an_algorithm_has_not_is_an_error_that_names_both_once() -> None:
    with pytest.raises(OptionError, match=r"^algorithm 'gptq': it has no parameter 'dampin'\. Did you mean 'damping'"):
        chosen(["gptq:dampin=0.1"])
