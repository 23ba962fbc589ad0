"""Tensors of known values for the tests of the range methods."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxq.calibration.statistics import TensorStatistics
from onnxq.qparams import fake_quantize
from onnxq.ranged import from_range
from onnxq.spec import QuantSpec

U8 = QuantSpec(8, signed=False, symmetric=False)
S8 = QuantSpec(8)
U4 = QuantSpec(4, signed=False, symmetric=False)
S4 = QuantSpec(4)


def stats_of(*samples: Any) -> TensorStatistics:
    """Statistics of samples."""
    stats = TensorStatistics("t")
    for index, sample in enumerate(samples):
        stats.update(np.asarray(sample, np.float32), index)
    return stats


def true_error(x: NDArray[np.float32], lo: float, hi: float, spec: QuantSpec) -> float:
    """Mean squared error on the values themselves, float64."""
    changed = fake_quantize(x, from_range(lo, hi, spec)).astype(np.float64)
    return float(((changed - x) ** 2).mean())


def tensors() -> dict[str, NDArray[np.float32]]:
    """Tensors of the usual kinds."""
    rng = np.random.default_rng(0)
    kinds = {
        "gauss": rng.standard_normal(40000),
        "relu": np.maximum(rng.standard_normal(40000), 0),
        "laplace": rng.laplace(size=40000),
        "heavy": rng.standard_t(2, 40000),
        "shifted": rng.gamma(2, size=40000) - 1,
        "negative": -rng.gamma(2, size=40000),
        "far": rng.standard_normal(40000) + 20,
        "uniform": rng.uniform(-1, 3, 40000),
        "few": rng.integers(0, 4, 40000) * 0.37,
        "outlier": np.append(rng.standard_normal(40000), 1e6),
        "tiny": rng.standard_normal(40000) * 1e-30,
        "denormal": rng.standard_normal(1000) * 1e-41,
        "zero": np.zeros(100),
        "one": np.ones(1) * 3.5,
    }
    return {name: x.astype(np.float32) for name, x in kinds.items()}


def divergences(x: NDArray[np.float32], levels: int) -> dict[float, float]:
    """Threshold → Kullback-Leibler divergence, written out plainly on 2048 equal bins."""
    magnitudes = np.abs(x[x != 0]).astype(np.float64)
    end = float(magnitudes.max())
    histogram, _ = np.histogram(magnitudes, bins=2048, range=(0, end))
    found = {}
    for kept in range(levels, 2049, 4):
        p = histogram[:kept].astype(np.float64)
        p[-1] += histogram[kept:].sum()
        q = np.zeros(kept)
        for level in range(levels):
            part = slice(level * kept // levels, (level + 1) * kept // levels)
            filled = histogram[part] > 0
            if filled.any():
                q[part] = np.where(filled, histogram[part].sum() / filled.sum(), 0.0)
        q[-1] = q[-1] or 1e-4
        p, q = p / p.sum(), q / histogram[:kept].sum()
        found[kept * end / 2048] = float((p[p > 0] * np.log(p[p > 0] / q[p > 0])).sum())
    return found
