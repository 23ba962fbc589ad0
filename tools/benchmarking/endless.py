"""A data source without end and without memory: random feeds of a model's inputs, for `--data endless.py:feeds`."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np

import onnxq


def feeds() -> Iterator[dict[str, np.ndarray]]:
    """Samples of the model that the environment names (BENCHMARK_MODEL); free dimensions are 1."""
    inputs = onnxq.Session(os.environ["BENCHMARK_MODEL"]).inputs
    random = np.random.default_rng(0)
    while True:
        sample = {}
        for info in inputs:
            shape = tuple(d if isinstance(d, int) and d > 0 else 1 for d in info.shape or ())
            sample[info.name] = random.normal(0, 1, shape).astype(info.dtype)
        yield sample
