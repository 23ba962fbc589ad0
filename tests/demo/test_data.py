"""The demo's files: small, real, and a BatchNormalization that has not been folded."""

from __future__ import annotations

import numpy as np
import onnx

from onnxq.demo.data import MODEL, load_digits, upscale
from onnxq.ort.session import Session


def test_the_model_is_small_and_unfolded() -> None:
    model = onnx.load(MODEL)
    onnx.checker.check_model(model, full_check=True)
    assert MODEL.stat().st_size < 150_000
    assert sum(node.op_type == "BatchNormalization" for node in model.graph.node) == 3


def test_the_data_is_small_and_sound() -> None:
    assert MODEL.with_suffix(".npz").stat().st_size < 50_000
    digits = load_digits()
    assert digits.calibration.shape == (128, 1, 24, 24)
    assert digits.test.shape == (359, 1, 24, 24)
    assert (digits.test.min(), digits.test.max()) == (0.0, 1.0)
    assert set(digits.labels.tolist()) == set(range(10))
    calibration = {image.tobytes() for image in digits.calibration}
    assert not calibration & {image.tobytes() for image in digits.test}


def test_upscaling_repeats_every_pixel() -> None:
    small = np.arange(64).reshape(1, 8, 8) % 17
    large = upscale(small)
    assert large.dtype == np.float32
    np.testing.assert_allclose(large[0, 0, 1::3, 1::3] * 16, small[0])


def test_the_float_model_knows_the_digits() -> None:
    digits = load_digits()
    logits = Session(MODEL).run({"image": digits.test})["logits"]
    assert (logits.argmax(axis=1) == digits.labels).mean() > 0.98
