"""What lies beyond a quantizer's grid is counted on random inputs."""

from __future__ import annotations

import numpy as np
import pytest

import onnxq
from onnxq import Options
from onnxq.measuring.clipped import clipped
from tests.models import build, f32


def inside(op: str = "Mul (xd, two)") -> onnxq.Quantized:
    """``x``, uniform from -1.28 to 1.27 and less, twice that as ``h``."""
    model = build(
        f"""(float[1, 4000] x) => (float[1, 4000] y) {{
            xq = QuantizeLinear (x, s, z)  xd = DequantizeLinear (xq, s, z)
            h = {op}  y = Abs (h)
        }}""",
        s=f32(0.01),
        z=np.uint8(128),
        two=f32(2),
        other=np.array([3, 7]),
    )
    return onnxq.read(model)


def test_the_share_beyond_the_bounds_is_told() -> None:
    """Three samples fill all, half and a quarter of the range: of ``h`` to 2.55, 1.27 and .64."""
    found = clipped(inside(), {"h": (-1.275, 1.275)}, {"h": 0.01}, Options())
    assert found == pytest.approx({"h": 1 / 6}, abs=0.01)
    assert clipped(inside(), {"h": (-np.inf, 1.275)}, {"h": 0.01}, Options()) == pytest.approx({"h": 1 / 12}, abs=0.01)


def test_what_rounding_loses_more_of_is_not_told() -> None:
    """Of a third, uniform to 2.55, ``(2.55 - 1.275)**3 / (3 * 2.55)`` is cut off: as much as steps of 1.04 round."""
    assert not clipped(inside(), {"h": (-2.5, 2.5)}, {"h": 0.02}, Options())
    assert not clipped(inside(), {"h": (-1.275, 1.275)}, {"h": 1.15}, Options())
    assert clipped(inside(), {"h": (-1.275, 1.275)}, {"h": 0.95}, Options())


def test_a_model_that_cannot_be_run_tells_nothing() -> None:
    assert not clipped(inside("Expand (xd, other)"), {"h": (-0.1, 0.1)}, {"h": 0.01}, Options())
    assert not clipped(inside(), {}, {}, Options())
