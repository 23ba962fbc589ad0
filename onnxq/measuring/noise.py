"""Noise of a quantized model at its float outputs, sample by sample: what candidates are compared by."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from onnxq.calibration.statistics import KeptSample
from onnxq.errors import ExecutionError
from onnxq.measuring.simulation import simulation
from onnxq.options import Options
from onnxq.quantized import Quantized

__all__ = ["output_noise"]


def output_noise(
    quantized: Quantized, samples: Sequence[KeptSample], options: Options
) -> dict[str, tuple[NDArray[np.float64], float]] | None:
    """Run a quantized model on kept samples.

    Args:
        quantized: the model.
        samples: with the float model's outputs.
        options: providers and the library of custom operators.

    Returns:
        Float output → mean squared error of each sample that has elements (float64, ``(samples,)``), and the mean
        square of the float model's values over these; ``None`` where the model does not run.
    """
    noise: dict[str, list[float]] = {}
    signal: dict[str, list[float]] = {}
    try:
        session = simulation(quantized, providers=options.providers, custom_op_library=options.custom_op_library)
        for sample in samples:
            got = session.run(sample.feeds)
            for name, values in sample.outputs.items():
                if values.dtype.kind == "f" and values.size and got[name].shape == values.shape:
                    exact = values.astype(np.float64)
                    noise.setdefault(name, []).append(float(np.mean(np.square(got[name] - exact))))
                    signal.setdefault(name, []).append(float(np.mean(np.square(exact))))
    except ExecutionError:
        return None
    return {name: (np.array(parts), float(np.mean(signal[name]))) for name, parts in noise.items()}
