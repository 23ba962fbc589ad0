"""Quantize the packaged network and compare it with the float one on digits that it has not seen."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from onnxq.console.progress import Reporter
from onnxq.demo.data import MODEL, load_digits
from onnxq.options import Options
from onnxq.ort.session import Session
from onnxq.quantize import quantize
from onnxq.quantized import Quantized

__all__ = ["DemoResult", "demo"]

_BATCH = 64
_ROUNDS = 15


@dataclass(frozen=True)
class DemoResult:
    """What the demo measured.

    Attributes:
        digits: number of test digits.
        float_accuracy: share that the float network gets right.
        int8_accuracy: share that the quantized network gets right.
        agreement: share on which both say the same.
        float_bytes: size of the float file.
        int8_bytes: size of the files written.
        float_ms: milliseconds for a batch of 64, best of several; None where the target is not onnxruntime, which this
            is measured in.
        int8_ms: the same for the quantized network.
        seconds: wall time of quantizing.
        output: the quantized file, None if it was not kept.
    """

    digits: int
    float_accuracy: float
    int8_accuracy: float
    agreement: float
    float_bytes: int
    int8_bytes: int
    float_ms: float | None
    int8_ms: float | None
    seconds: float
    output: str | None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data."""
        return asdict(self)


def demo(
    output: str | Path | None = None, *, backend: str = "onnxruntime", reporter: Reporter | None = None
) -> tuple[DemoResult, Quantized]:
    """Quantize the packaged digits network, run both, and measure.

    Args:
        output: where to keep the quantized file: its path, or a folder as for :func:`onnxq.quantize`; None keeps none.
        backend: name of the target.
        reporter: shows progress.

    Returns:
        What was measured, and the quantized model.
    """
    digits = load_digits()
    with tempfile.TemporaryDirectory() as folder:
        wanted = Path(output) if output is not None else Path(folder) / "digits.int8.onnx"
        start = time.perf_counter()
        options = Options()
        quantized = quantize(
            MODEL, digits.calibration, backend=backend, output=wanted, options=options, reporter=reporter
        )
        seconds = time.perf_counter() - start
        path = quantized.files[0]
        home = quantized.backend.at_home
        computed = (Session(MODEL), Session(quantized.simulated(), optimize=home))  # what a file alone may not say
        float_class, int8_class = (_classify(session, digits.test) for session in computed)
        float_ms = int8_ms = None
        if home:
            raced = [Session(source, timed=True) for source in (MODEL, path)]
            float_ms, int8_ms = _milliseconds(raced, digits.test[:_BATCH])
        result = DemoResult(
            digits=len(digits.labels),
            float_accuracy=float(np.mean(float_class == digits.labels)),
            int8_accuracy=float(np.mean(int8_class == digits.labels)),
            agreement=float(np.mean(float_class == int8_class)),
            float_bytes=MODEL.stat().st_size,
            int8_bytes=sum(file.stat().st_size for file in quantized.files),
            float_ms=float_ms,
            int8_ms=int8_ms,
            seconds=seconds,
            output=str(path) if output is not None else None,
        )
    return result, quantized


def _classify(session: Session, images: np.ndarray) -> np.ndarray:
    """The most likely digit of each image, int64 N."""
    parts = [session.run({"image": images[i : i + _BATCH]})["logits"] for i in range(0, len(images), _BATCH)]
    classes: np.ndarray = np.concatenate(parts).argmax(axis=1)
    return classes


def _milliseconds(sessions: Sequence[Session], batch: np.ndarray) -> list[float]:
    """Best time of each, run in turn so that all see the same machine."""
    best = [float("inf")] * len(sessions)
    for _ in range(_ROUNDS):
        for i, session in enumerate(sessions):
            start = time.perf_counter()
            session.run({"image": batch})
            best[i] = min(best[i], 1000 * (time.perf_counter() - start))
    return best
