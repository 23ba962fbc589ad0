"""What two runtimes give for the same samples: errors of outputs, in dB and in steps of their quantizers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.measuring.chosen_rows import Rows, matched
from onnxq.measuring.metrics import ErrorMeter, Errors
from onnxq.measuring.outputs import NONE
from onnxq.ort.session import Session
from onnxq.quantized import Quantized
from onnxq.spec import Scheme

__all__ = ["errors_between", "in_shape_of", "plain_outputs", "steps_between", "steps_of"]

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
    wanted: Sequence[Arrays], got: Sequence[Arrays], rows: Mapping[str, Rows] = NONE
) -> dict[str, Errors]:
    """The errors of every output that both have. One of other sizes is counted as of another shape.

    Args:
        wanted: for each sample what should be.
        got: for each sample what is.
        rows: see :func:`onnxq.measuring.chosen_rows.chosen_rows`.
    """
    meters: dict[str, ErrorMeter] = {}
    for index, name, reference, found in _pairs(wanted, got, rows):
        meters.setdefault(name, ErrorMeter()).update(reference, found, index)
    return {name: meter.result() for name, meter in meters.items()}


def steps_between(
    wanted: Sequence[Arrays], got: Sequence[Arrays], steps: Mapping[str, float], rows: Mapping[str, Rows] = NONE
) -> dict[str, float]:
    """The largest difference of outputs in steps of their quantizers, for those of the same sizes.

    It is infinite where one of the two is no finite number and they are not equal.

    Args:
        wanted: as for :func:`errors_between`.
        got: the same.
        steps: output → step of its quantizer.
        rows: as there.
    """
    largest: dict[str, float] = {}
    for _, name, reference, found in _pairs(wanted, got, rows):
        if name in steps and reference.size and found.shape == reference.shape:
            largest[name] = max(largest.get(name, 0.0), _largest_difference(reference, found) / steps[name])
    return largest


def _pairs(
    wanted: Sequence[Arrays], got: Sequence[Arrays], rows: Mapping[str, Rows]
) -> Iterator[tuple[int, str, NDArray[Any], NDArray[Any]]]:
    """Sample, output, what it should be, and what it is."""
    for index, (references, results) in enumerate(zip(wanted, got, strict=True)):
        for name, values in references.items():
            if name in results:
                yield index, name, values, matched(values, in_shape_of(values, results[name]), rows.get(name))


def _largest_difference(reference: NDArray[Any], got: NDArray[Any]) -> float:
    with np.errstate(invalid="ignore"):  # infinities on both sides
        apart = np.abs(reference.astype(np.float64) - got)
    alike = (reference == got) | (np.isnan(reference) & np.isnan(got))
    return float(np.where(alike, 0.0, np.where(np.isfinite(apart), apart, np.inf)).max())


def in_shape_of(wanted: NDArray[Any], got: NDArray[Any]) -> NDArray[Any]:
    """An array in the shape of another where it has as many elements: runtimes leave out dimensions of one element."""
    return got.reshape(wanted.shape) if got.size == wanted.size else got
