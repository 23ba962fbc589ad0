"""Weights of which a channel is zero throughout, with a zero point of its own."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import onnxq
from tests.installed import needs
from tests.models import build, f32


def depthwise(zero_points: list[int], dead: int) -> onnx.ModelProto:
    """A depthwise convolution of uint8 weights whose channel ``dead`` is zero throughout."""
    codes = np.random.default_rng(0).integers(1, 256, (4, 1, 3, 3)).astype(np.uint8)
    codes[dead] = zero_points[dead]
    return build(
        """(float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) {
            xq = QuantizeLinear (x, s, z)  xd = DequantizeLinear (xq, s, z)
            wd = DequantizeLinear <axis = 0> (w, ws, wz)
            [conv] a = Conv <group = 4, pads = [1, 1, 1, 1]> (xd, wd)
            yq = QuantizeLinear (a, s2, z)  y = DequantizeLinear (yq, s2, z)
        }""",
        s=f32(0.03),
        s2=f32(0.1),
        z=np.uint8(128),
        w=codes,
        ws=np.linspace(0.005, 0.02, 4, dtype=np.float32),
        wz=np.array(zero_points, np.uint8),
    )


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "qnn", "tensorrt"])
def test_it_takes_the_zero_point_of_the_others(backend: str) -> None:
    made = onnxq.deploy(depthwise([128, 0, 128, 128], dead=1), backend=backend)
    assert made.plan.quantized["conv"] == "Conv"
    (weight,) = (site for site in made.plan.sites if site.role == "weight")
    numbers = made.qparams[weight.name]
    assert (numbers.zero_point == (0 if numbers.spec.signed else 128)).all()
    found = made.verification
    assert found is not None and found.against_source is not None and found.against_source.worst is not None
    assert found.against_source.worst[1].sqnr > 40, "two of them do not round the output"


@needs("onnxruntime", "1.27")
@pytest.mark.parametrize(("zero_points", "dead"), [([128, 7, 128, 128], 0), ([128, 0, 7, 128], 1)])
def test_zero_points_that_differ_with_reason_are_kept(zero_points: list[int], dead: int) -> None:
    options = onnxq.Options(reduce_range=True)
    made = onnxq.deploy(depthwise(zero_points, dead), options=options)
    (weight,) = (site for site in made.plan.sites if site.role == "weight")
    assert made.qparams[weight.name].zero_point.tolist() == zero_points
    with pytest.raises(onnxq.BackendError, match="its zero point is"):
        onnxq.deploy(depthwise(zero_points, dead), backend="tensorrt")
