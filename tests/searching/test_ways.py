"""What a search may try for a model: nothing that finds nothing to do there."""

from __future__ import annotations

import pytest

from onnxq import Options
from onnxq.backend_choice import backend_named
from onnxq.prepare import Prepared
from onnxq.searching.candidates import Ways
from tests.models import build, normal


@pytest.mark.parametrize(("between", "tried"), [("Identity", True), ("Relu", False)])
def test_rotation_is_tried_where_linear_layers_follow_each_other(between: str, tried: bool) -> None:
    model = build(
        f"(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) {{ a = Conv (x, u)\n r = {between} (a)\n y = Conv (r, w) }}",
        u=normal(8, 3, 3, 3),
        w=normal(4, 8, 1, 1),
    )
    options = Options(placement="all")
    found = Ways.of(options, Prepared(model, options), backend_named("onnxruntime")).algorithms
    assert ("rotate" in found) is tried
    assert "equalize" in found
