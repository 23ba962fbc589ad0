"""The demo's files: handwritten digits (Alpaydin & Kaynak, UCI 1998, CC BY 4.0) and a CNN trained on them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

__all__ = ["MODEL", "Digits", "load_digits", "upscale"]

MODEL = Path(__file__).with_name("digits.onnx")
_DATA = Path(__file__).with_name("digits.npz")


class Digits(NamedTuple):
    """Images are float32 Nx1x24x24 in 0..1, labels int64 N."""

    calibration: np.ndarray
    test: np.ndarray
    labels: np.ndarray


def upscale(images: np.ndarray) -> np.ndarray:
    """Nx8x8 counts 0..16 → float32 Nx1x24x24 in 0..1, each pixel three times."""
    large = images.repeat(3, axis=1).repeat(3, axis=2)
    return (large[:, None] / 16).astype(np.float32)


def load_digits() -> Digits:
    """The packaged digits: 128 for calibration, 359 for testing, which the network has not seen."""
    with np.load(_DATA, allow_pickle=False) as data:
        return Digits(upscale(data["calibration"]), upscale(data["test"]), data["labels"].astype(np.int64))
