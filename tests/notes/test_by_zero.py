"""What is never 0 in float and 0 in integers is said where a result is poor, and what is said helps."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest

import onnxq
from onnxq import Options
from tests.models import build, images, normal, verified_sqnr

DATA = list(images(1, 8, 6, 6, samples=24))
EIGHT = Options(act_bits=8)
"""Else snpe takes 16 of itself."""


def soft_sign(epsilon: float, last: str = "d = Sqrt (s)\n z = Div (f, d)") -> onnx.ModelProto:
    """What a layer gives, divided by its size number by number."""
    return build(
        f"""(float[1, 8, 6, 6] x) => (float[1, 4, 6, 6] y) {{
            [before] f = Conv <pads = [1, 1, 1, 1]> (x, w)
            q = Mul (f, f)
            s = Add (q, e)
            {last}
            [after] y = Conv <pads = [1, 1, 1, 1]> (z, v)
        }}""",
        w=normal(4, 8, 3, 3, scale=0.2),
        v=normal(4, 4, 3, 3, seed=1, scale=0.2),
        e=np.array([epsilon], np.float32),
    )


def said(result: onnxq.Quantized) -> list[str]:
    return [hint for hint in result.hints if " 0 in integers" in hint]


@pytest.mark.parametrize("backend", ["snpe", "stpu", "tengine"])
def test_a_divisor_that_rounds_to_zero(backend: str) -> None:
    poor = onnxq.quantize(soft_sign(1e-6), DATA, backend=backend, options=EIGHT)
    assert not verified_sqnr(poor) > 0
    (hint,) = said(poor)
    assert "(Div) divides by what is 0 in integers and not in float: 's' goes down to" in hint
    found = re.search(r"rounds to 0 below ([0-9.e-]+)\.", hint)
    assert found is not None
    other = onnxq.quantize(soft_sign(1.2 * float(found[1])), DATA, backend=backend, options=EIGHT)
    assert verified_sqnr(other) > 20 and not said(other)


def test_a_logarithm() -> None:
    logarithm = "z = Log (s)"
    result = onnxq.quantize(soft_sign(1e-6, logarithm), DATA, backend="snpe", options=EIGHT)
    assert "(Log) takes the logarithm of what is 0 in integers" in said(result)[0]


def test_a_target_that_keeps_it_float_has_nothing_to_say() -> None:
    assert not said(onnxq.quantize(soft_sign(1e-6), DATA))
