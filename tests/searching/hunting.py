"""A small model to search on, how it is judged, and the search itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import onnxq
from onnxq import Options, Search
from onnxq.measuring.metrics import sqnr
from onnxq.searching import trials
from onnxq.searching.user_metric import Run
from tests.models import build, images, normal

HELD = images(2, 8, 6, 6, samples=3, seed=77)


def small_model() -> onnx.ModelProto:
    """Three convolutions; the weights of the first are of very different sizes."""
    return build(
        """(float[2, 8, 6, 6] x) => (float[2, 4, 6, 6] y) {
            [one] a = Conv <pads = [1, 1, 1, 1]> (x, u)
            r = Relu (a)
            [two] b = Conv <pads = [1, 1, 1, 1]> (r, v)
            s = Relu (b)
            [three] y = Conv (s, w)
        }""",
        u=normal(16, 8, 3, 3, seed=1) ** 3,
        v=normal(16, 16, 3, 3, seed=2),
        w=normal(4, 16, 1, 1, seed=3),
    )


def by_operators(self: trials.Trials, model: Path, options: Options) -> float:
    types = {i.data_type for i in onnx.load(model).graph.initializer}
    return 0.5 + 0.1 * len(options.exclude) + (1.0 if onnx.TensorProto.UINT16 in types else 0.0)


def decibels(model: Path) -> Callable[[Run], float]:
    """SQNR against the float model on samples that calibration has not seen, at most 100 dB."""
    float_run = Run(model)
    expected = [float_run(feed)["y"] for feed in HELD]

    def closeness(run: Run) -> float:
        got = [run(feed)["y"] for feed in HELD]
        return min(100.0, sqnr(np.stack(expected), np.stack(got)))

    return closeness


def find(model: Path, max_drop: float, **more: Any) -> Search:
    more = {"metric": decibels(model), "options": Options(placement="all"), **more}
    data = images(2, 8, 6, 6, samples=8)
    return onnxq.search(model, data, output=model.with_name("q.onnx"), max_drop=max_drop, **more)


def names(found: Search) -> list[str]:
    return [attempt.level for attempt in found.attempts]
