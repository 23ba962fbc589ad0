"""What a quantized model computes for its target, held against the float model's outputs."""

from __future__ import annotations

import math

import numpy as np
import pytest

import onnxq
from onnxq import Options
from onnxq.calibration.statistics import KeptSample
from onnxq.measuring.simulation import output_sqnr
from tests.models import build, images, normal


def test_output_sqnr_is_that_of_the_worst_output() -> None:
    model = build(
        "(float[4, 8] x) => (float[4, 8] y, float[4, 8] z) { y = MatMul (x, w)\n z = Neg (x) }", w=normal(8, 8)
    )
    q = onnxq.quantize(model, images(4, 8), options=Options(placement="all"))
    samples = [
        KeptSample(i, feed, {"y": feed["x"] @ normal(8, 8), "z": -feed["x"]}) for i, feed in enumerate(images(4, 8))
    ]
    assert q.verification is not None
    assert output_sqnr(q, samples[:4], Options()) == pytest.approx(q.verification.outputs["y"].sqnr, abs=2.0)
    unfit = [KeptSample(0, {"x": np.zeros((3, 3, 3), np.float32)}, {})]
    assert output_sqnr(q, unfit, Options()) == -math.inf, "does not run"
