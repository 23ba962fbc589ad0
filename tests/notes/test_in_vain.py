"""Overrides of what stays float."""

from __future__ import annotations

import pytest

import onnxq
from onnxq import Options
from tests.models import build, images, normal


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("small=bits=4", True),
        ("node:small=weight_bits=4", True),
        ("Sin=act_bits=8", True),
        ("Conv=range=minmax", False),
        ("large=weight_bits=4", False),
        ("v=weight_bits=4", False),
        ("small=float=true", False),
    ],
)
def test_an_override_of_what_stays_float_is_said_to_have_no_effect(override: str, told: bool) -> None:
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 8, 8] y) {
            [large] a = Conv (x, v)
            s = Sin (a)
            [small] y = Conv (s, w)
        }""",
        v=normal(4, 3, 1, 1),
        w=normal(4, 4, 1, 1),
    )
    options = Options(placement="all", override=(override,), exclude=("node:small",))
    made = onnxq.quantize(model, images(1, 3, 8, 8), options=options)
    assert made.verification is not None
    said = [text for text in made.verification.warnings if "has no effect" in text]
    assert bool(said) == told and all(override.split("=")[0] in text for text in said)
