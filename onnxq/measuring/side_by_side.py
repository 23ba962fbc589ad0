"""What two runtimes give for the same samples: errors of outputs, in dB and in steps of their quantizers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.measuring.metrics import ErrorMeter, Errors
from onnxq.ort.session import Session
from onnxq.quantized import Quantized
from onnxq.spec import Scheme

__all__ = ["errors_between", "in_shape_of", "plain_outputs", "steps_of"]

Arrays = Mapping[str, NDArray[Any]]


def plain_outputs(model: ir.Model, feeds: Sequence[Arrays], advance: Callable[[int], object]) -> list[dict[str, Any]]:
    """What onnxruntime without optimizations computes; ``advance`` is called with the number of samples done."""
    session = Session(model, optimize=False)
    found = []
    for done, sample in enumerate(feeds, 1):
        found.append(dict(session.run(sample)))
        advance(done)
    return found


def steps_of(quantized: Quantized) -> dict[str, float]:
    """Output → step of its quantizer, where it has steps of one size."""
    names = {value.name for value in quantized.model.graph.outputs}
    sites = [s for s in quantized.plan.sites if s.role == "activation" and s.produced and s.tensor in names]
    sites = [s for s in sites if s.spec.scheme is Scheme.UNIFORM]
    return {s.tensor: float(quantized.qparams[s.name].scale.max()) for s in sites}


def errors_between(
    pairs: Sequence[tuple[Arrays, Arrays]], steps: Mapping[str, float]
) -> tuple[dict[str, Errors], dict[str, float]]:
    """The errors of every output, and the largest difference in steps for those that have steps.

    The difference is infinite where one of the two is no finite number and they are not equal.

    Args:
        pairs: for each sample what should be, and what is. An output of other sizes is counted as of another shape.
        steps: output → step of its quantizer.
    """
    meters: dict[str, ErrorMeter] = {}
    lsb: dict[str, float] = {}
    for index, (reference, got) in enumerate(pairs):
        for name, values in reference.items():
            if name not in got:
                continue
            found = in_shape_of(values, got[name])
            meters.setdefault(name, ErrorMeter()).update(values, found, index)
            if name in steps and values.size and found.shape == values.shape:
                lsb[name] = max(lsb.get(name, 0.0), _largest_difference(values, found) / steps[name])
    return {name: meter.result() for name, meter in meters.items()}, lsb


def _largest_difference(reference: NDArray[Any], got: NDArray[Any]) -> float:
    with np.errstate(invalid="ignore"):  # infinities on both sides
        apart = np.abs(reference.astype(np.float64) - got)
    alike = (reference == got) | (np.isnan(reference) & np.isnan(got))
    return float(np.where(alike, 0.0, np.where(np.isfinite(apart), apart, np.inf)).max())


def in_shape_of(wanted: NDArray[Any], got: NDArray[Any]) -> NDArray[Any]:
    """An array in the shape of another where it has as many elements: runtimes leave out dimensions of one element."""
    return got.reshape(wanted.shape) if got.size == wanted.size else got
