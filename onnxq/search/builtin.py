"""The measure without one of the user's: how well a model agrees with the float model on samples held back.

The model is taken for a classifier where every float output has two dimensions, samples and two or more classes: the
measure is the share of samples (rows) whose largest value stands at the same place, at the worst output. Any other
model is judged by its error: 1 - noise / signal at the worst float output, so that a drop of 0.01 is an SQNR of 20 dB,
0.001 one of 30 dB. The float model has 1 either way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxq.errors import DataError
from onnxq.measuring.metrics import ErrorMeter
from onnxq.ort.session import InputInfo
from onnxq.search.user_metric import Metric, Run

__all__ = ["agreement_metric", "is_classifier"]

Arrays = Mapping[str, NDArray[Any]]


def is_classifier(outputs: Iterable[InputInfo]) -> bool:
    """Whether every float output has two dimensions, the second of two or more classes."""
    floats = [info for info in outputs if info.dtype.kind == "f"]
    return bool(floats) and all(
        info.shape is not None and len(info.shape) == 2 and isinstance(info.shape[1], int) and info.shape[1] >= 2
        for info in floats
    )


def agreement_metric(outputs: Iterable[InputInfo], pairs: Callable[[], Iterable[tuple[Arrays, Arrays]]]) -> Metric:
    """The measure that fits a model.

    Args:
        outputs: the model's outputs.
        pairs: gives feeds with the float model's outputs, the same ones each time.
    """
    known = list(outputs)
    if not any(info.dtype.kind == "f" for info in known):
        raise DataError("no output of the model is float, so nothing can be compared", hint="Give a metric")
    if is_classifier(known):
        about = "share of samples with the float model's top class (two-dimensional outputs are taken for classes)"
        name, function = "agreement", _top
    else:
        about = "1 - noise/signal against the float model, worst output (a drop of 0.01 is 20 dB, 0.001 is 30 dB)"
        name, function = "1 - noise/signal", _power
    digest = hashlib.sha256(name.encode()).hexdigest()
    return Metric(name, digest, lambda run: function(run, pairs()), about=about, baseline=1.0)


def _top(run: Run, pairs: Iterable[tuple[Arrays, Arrays]]) -> float:
    same: dict[str, list[bool]] = {}
    for feeds, expected in pairs:
        got = run(feeds)
        for name, values in expected.items():
            if values.dtype.kind == "f":
                equal = np.nanargmax(_finite(values), axis=1) == np.nanargmax(_finite(got[name]), axis=1)
                same.setdefault(name, []).extend(equal.tolist())
    return min(float(np.mean(found)) for found in same.values())


def _finite(values: NDArray[Any]) -> NDArray[Any]:
    return np.where(np.isnan(values), -np.inf, values)


def _power(run: Run, pairs: Iterable[tuple[Arrays, Arrays]]) -> float:
    meters: dict[str, ErrorMeter] = {}
    for number, (feeds, expected) in enumerate(pairs):
        got = run(feeds)
        for name, values in expected.items():
            if values.dtype.kind == "f":
                meters.setdefault(name, ErrorMeter()).update(values, got[name], number)
    shares = [10.0 ** (-max(meter.result().sqnr, -60.0) / 10.0) for meter in meters.values()]
    known = [share for share in shares if share == share]
    return 1.0 - max(known, default=0.0)
