"""What programs share that set onnxq beside a vendor's quantizer: which samples, how far from float, how long."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

__all__ = ["Run", "Sample", "part", "samples_of", "sqnr_of", "times_of"]

SHARE = 2 / 3
SECONDS = 2.0
"""Of the runs of each model that is timed."""
LEAST = 10

Sample = dict[str, Any]
Run = Callable[[Sample], list[Any]]
"""A sample → the model's outputs, in order."""


def part(source: str, calibration: str, evaluation: str) -> None:
    """Part samples into those to calibrate with and those to measure on."""
    with np.load(source) as arrays:
        every = {name: arrays[name] for name in arrays.files}
    count = max(int(len(next(iter(every.values()))) * SHARE), 1)
    np.savez(calibration, **{name: array[:count] for name, array in every.items()})
    np.savez(evaluation, **{name: array[count:] for name, array in every.items()})


def samples_of(path: str) -> list[Sample]:
    """The samples of a file of arrays."""
    with np.load(path) as arrays:
        every = {name: arrays[name] for name in arrays.files}
    count = len(next(iter(every.values())))
    return [{name: np.asarray(array[k]) for name, array in every.items()} for k in range(count)]


def times_of(runs: Sequence[Callable[[Sample], object]], sample: Sample) -> list[float]:
    """Median CPU seconds of a run, in turn."""
    took: list[list[float]] = [[] for _ in runs]
    start = time.perf_counter()
    while len(took[0]) < LEAST or time.perf_counter() - start < SECONDS * len(runs):
        for times, run in zip(took, runs, strict=True):
            run(sample)
            begin = time.process_time()
            run(sample)
            times.append(time.process_time() - begin)
    return [statistics.median(times) for times in took]


def sqnr_of(reference: Run, result: Run, samples: Sequence[Sample]) -> float:
    """Of the worst float output, dB."""
    noise: dict[int, float] = {}
    signal: dict[int, float] = {}
    for sample in samples:
        wanted, got = reference(sample), result(sample)
        for k, (exact, found) in enumerate(zip(wanted, got, strict=True)):
            if exact.dtype.kind == "f":
                signal[k] = signal.get(k, 0.0) + float(np.square(exact, dtype=np.float64).sum())
                off = np.subtract(found, exact, dtype=np.float64) if found.shape == exact.shape else np.array(math.inf)
                noise[k] = noise.get(k, 0.0) + float(np.square(off).sum())
    ratios = [signal[k] / noise[k] for k in signal if signal[k] > 0 and noise[k] > 0]
    return 10.0 * math.log10(min(ratios)) if ratios else math.inf
