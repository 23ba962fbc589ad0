"""Which Relu and Clip a quantizer makes superfluous: those whose bounds its grid does not reach beyond."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from onnxq.qparams import QParams
from onnxq.render.limits import saturates
from onnxq.spec import QuantSpec
from tests.models import build, f32


@pytest.mark.parametrize(
    ("op", "zero", "top", "wanted"),
    [
        ("Clip (x, lo, hi)", 0, 6.0, True),
        ("Clip (x, lo, hi)", 0, 5.0, True),
        ("Clip (x, lo, hi)", 0, 6.0 * 255 / 254, False),
        ("Clip (x, lo, hi)", 1, 6.0, False),
        ("Clip (x, lo)", 0, 100.0, True),
        ("Clip (x, lo)", 1, 100.0, False),
        ("Relu (x)", 0, 100.0, True),
        ("Relu (x)", 1, 100.0, False),
    ],
)
def test_a_function_goes_only_where_no_integer_stands_for_what_it_cuts_off(
    op: str, zero: int, top: float, wanted: bool
) -> None:
    """A whole step beyond a bound is an integer that the function would have changed."""
    node = ir.from_proto(build(f"(float[4] x) => (float[4] y) {{ y = {op} }}", lo=f32(0.0), hi=f32(6.0))).graph[0]
    spec = QuantSpec(8, signed=False, symmetric=False)
    numbers = QParams(spec, np.asarray(top / (255 - zero), np.float32), np.asarray(zero, np.int64))
    assert saturates(node, numbers) == wanted
