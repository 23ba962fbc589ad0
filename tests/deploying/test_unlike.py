"""Results that differ much from the model given: what is said of it."""

from __future__ import annotations

from pathlib import Path

import pytest

import onnxq
from onnxq import Options
from tests.models import build, images, normal

_SAID = "cannot compute with the scales of"


@pytest.mark.parametrize(("backend", "said"), [("rknn", True), ("qnn", False)])
def test_scales_that_had_to_be_changed_are_named_where_it_costs_much(backend: str, said: bool, tmp_path: Path) -> None:
    """A mean of many numbers is far smaller than they are, and rknn's has one scale with them."""
    model = build(
        """(float[1, 4, 32, 32] x) => (float[1, 4] y) {
            c = Conv (x, w)
            m = GlobalAveragePool (c)
            f = Flatten (m)
            y = Gemm (f, v)
        }""",
        w=normal(4, 4, 1, 1),
        v=normal(4, 4, seed=1),
    )
    given = tmp_path / "given.onnx"
    onnxq.quantize(model, images(1, 4, 32, 32), backend="qonnx", output=given, options=Options(placement="all"))
    made = onnxq.deploy(given, backend=backend)
    assert made.verification is not None
    warnings = [warning for warning in made.verification.warnings if _SAID in warning]
    assert bool(warnings) is said
    assert not said or ("'m'" in warnings[0] and "Quantize the float model for rknn" in warnings[0])
