"""Noise of a quantized model at its float outputs, sample by sample: what candidates are compared by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onnxq.calibration.statistics import SENTINEL, KeptSample
from onnxq.errors import ExecutionError
from onnxq.measuring.apart import far_apart
from onnxq.measuring.joined import Partition
from onnxq.measuring.mask_values import fill_of, is_filled
from onnxq.measuring.metrics import WRONG
from onnxq.measuring.simulation import simulation
from onnxq.options import Options
from onnxq.quantized import Quantized

__all__ = ["OutputNoise", "output_noise"]


class OutputNoise(NamedTuple):
    """Noise at one output.

    Attributes:
        noise: mean squared error of each sample, float64, ``(samples,)``, where the float model gives numbers, no
            masks: 0 of one that has none; infinite where the quantized model gives no number for one; of a sample of
            another shape that of an error of twice the mean signal, infinite where there is none.
        signal: mean square of the float model's values over all samples.
        reshaped: samples of another shape.
    """

    noise: NDArray[np.float64]
    signal: float
    reshaped: int


def output_noise(
    quantized: Quantized, samples: Sequence[KeptSample], options: Options
) -> dict[str, OutputNoise] | None:
    """Run a quantized model on kept samples.

    Args:
        quantized: the model.
        samples: with the float model's outputs.
        options: providers and the library of custom operators.

    Returns:
        Float output → its noise, and what an output joins → its noise in place of that of an output that does not show
        it, see :mod:`onnxq.measuring.apart`; ``None`` where the model does not run.
    """
    noise: dict[str, list[float]] = {}
    signal: dict[str, list[float]] = {}
    reshaped: dict[str, list[bool]] = {}
    joined = far_apart(quantized.model, samples)
    try:
        session = simulation(quantized, **options.session)
        for sample in samples:
            got = session.run(sample.feeds)
            for name, values, given in _compared(sample, got, joined):
                if values.dtype.kind == "f":
                    same = given.shape == values.shape
                    exact, found = _numbers(values.astype(np.float64), given if same else values)
                    reshaped.setdefault(name, []).append(not same)
                    noise.setdefault(name, []).append(_mean_square(found - exact))
                    signal.setdefault(name, []).append(_mean_square(exact))
    except ExecutionError:
        return None
    result = {}
    for name, parts in signal.items():
        mean = float(np.mean(parts))
        wrong = WRONG * mean if mean > 0 else np.inf
        result[name] = OutputNoise(np.where(reshaped[name], wrong, noise[name]), mean, sum(reshaped[name]))
    return result


def _compared(
    sample: KeptSample, got: Mapping[str, NDArray[Any]], parts: Mapping[str, Partition]
) -> Iterator[tuple[str, NDArray[Any], NDArray[Any]]]:
    """Outputs, or what they join, with what the float model gives there and what the quantized one does."""
    for name, values in sample.outputs.items():
        if name not in parts:
            yield name, values, got[name]
            continue
        found = parts[name].split(got[name]) if got[name].shape == values.shape else {}
        for branch, wanted in parts[name].split(values).items():
            yield f"{name}: {branch}", wanted, found.get(branch, got[name])


def _numbers(exact: NDArray[np.float64], found: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[Any]]:
    """What is a number and no mask in the first, and what the second has in its place: infinite where that is none."""
    use, fill = np.isfinite(exact) & (np.abs(exact) <= SENTINEL), fill_of(exact)
    if fill is not None:
        use &= ~is_filled(exact, found, fill)
    if not use.all():
        exact, found = exact[use], found[use]
    return exact, found if np.isfinite(found).all() else np.where(np.isfinite(found), found, np.inf)


def _mean_square(values: NDArray[np.float64]) -> float:
    return float(np.mean(np.square(values))) if values.size else 0.0
