"""A result for LiteRT in its interpreter: what it computes is what was simulated, or as near as that is to float."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxq.quantized import Quantized
from tests.contract import sqnr

__all__ = ["assert_as_simulated"]

Array = NDArray[Any]
_NEAR, _SURE = 8.0, 20.0
"""dB by which the kernels' rounding may bring a result below what is between the simulation and float; and enough."""


def assert_as_simulated(
    quantized: Quantized, feeds: Sequence[dict[str, Array]], simulated: dict[str, list[Array]], scores: dict[str, float]
) -> None:
    """Run the samples of the sizes that the file has.

    Args:
        quantized: for LiteRT, in its own format.
        feeds: samples.
        simulated: what onnxruntime makes of them, by output.
        scores: SQNR of that against the float model.
    """
    from ai_edge_litert.interpreter import Interpreter

    with TemporaryDirectory() as folder:
        path = quantized.save(Path(folder, "net.onnx"))[1]
        runner = Interpreter(str(path), num_threads=1).get_signature_runner()
    inputs = {name: tuple(detail["shape"]) for name, detail in runner.get_input_details().items()}
    fit = [  # an input with a default may be left out
        k
        for k, feed in enumerate(feeds)
        if all(name in feed and np.shape(feed[name]) == shape for name, shape in inputs.items())
    ]
    made = [runner(**{name: np.asarray(feeds[k][name]) for name in inputs}) for k in fit]
    for name, arrays in simulated.items():
        wanted, got = [arrays[k] for k in fit], [np.asarray(one[name]) for one in made]
        assert all(a.shape == b.shape for a, b in zip(wanted, got, strict=True)), f"LiteRT gives {name!r} other sizes"
        rounded = np.isfinite(scores.get(name, np.inf))  # else it is float, and a last bit may take another branch
        if fit and wanted[0].dtype.kind == "f" and rounded:
            score = sqnr(wanted, got)
            told = (
                f"output {name!r}: LiteRT is {score:.1f} dB from the simulation, that {scores[name]:.1f} dB from float"
            )
            assert score >= min(scores[name] - _NEAR, _SURE), told
