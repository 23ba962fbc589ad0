"""A runtime against onnxruntime layer by layer: every layer gets the same integers, so none inherits a difference."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.errors import OptionError, VerificationError
from onnxq.graph.files.save import save
from onnxq.integer_operators import quantizing
from onnxq.measuring.metrics import ErrorMeter, jsonable
from onnxq.measuring.side_by_side import in_shape_of
from onnxq.ort.session import Session
from onnxq.qparams import dequantize
from onnxq.render.cuts import Cut, find_cuts, showing, taken_apart
from onnxq.runtimes.child import examine
from onnxq.runtimes.runtime import Runtime

__all__ = ["LayerAgreement", "compare_layers", "require_layers"]

_ROUNDING_FLOATS = frozenset({"FakeQuantize", "IntQuant", "NNIEQuantize", "Quant"})
"""Quantizers that give floats: there are no integers to hand to the next layer."""
_SAMPLES = 2
"""The integers of all tensors are held in memory, in files and in the runtime."""

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class LayerAgreement:
    """How a runtime and onnxruntime agree on the integers of one tensor, computed from equal integers.

    Attributes:
        tensor: the float tensor that is quantized.
        layer: the node that makes it.
        values: number of integers compared.
        differing: how many of them differ.
        steps: the largest difference, in steps of the quantizer.
        sqnr: of the numbers that the integers stand for, in dB; infinite where all are equal.
    """

    tensor: str
    layer: str
    values: int
    differing: int
    steps: int
    sqnr: float

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data."""
        return {name: jsonable(value) for name, value in vars(self).items()}


def compare_layers(
    model: ir.Model,
    runtime: Runtime,
    feeds: Sequence[Arrays],
    *,
    timeout: float,
    save: Callable[[ir.Model, Path], object] = save,
) -> tuple[LayerAgreement, ...]:
    """Run a model taken apart at its quantizers in a runtime and compare the integers of every layer.

    The runtime sees other graphs than in the whole model: where it joins layers across a quantizer, that is not what
    is run here.

    Args:
        model: with QuantizeLinear and DequantizeLinear; left unchanged.
        runtime: one that computes.
        feeds: samples; the first two, if they are of equal sizes, are run.
        timeout: seconds for the runtime.
        save: writes the parts as the runtime takes them.

    Returns:
        An entry for each tensor whose integers can be cut off, in the order of the graph.

    Raises:
        OptionError: there is no sample, or nothing to take apart.
        VerificationError: the runtime does not take the parts, or gives other tensors than they have.
    """
    cuts = require_layers(model, data=bool(feeds))
    sizes = {name: array.shape for name, array in feeds[0].items()}
    alike = [f for f in feeds[:_SAMPLES] if {name: array.shape for name, array in f.items()} == sizes]
    session = Session(showing(model, cuts), optimize=False)
    references = [session.run(sample) for sample in alike]
    if any(r[c.codes].shape != references[0][c.codes].shape for r in references for c in cuts):
        alike, references = alike[:1], references[:1]  # sizes that depend on the numbers
    given = [
        {**sample, **{c.given: r[c.codes] if runtime.reads_codes else dequantize(r[c.codes], c.numbers) for c in cuts}}
        for sample, r in zip(alike, references, strict=True)
    ]
    with tempfile.TemporaryDirectory(prefix="onnxq-") as folder:
        path = Path(folder, "model.onnx")
        parts = taken_apart(model, cuts, {**alike[0], **references[0]}, floats=not runtime.reads_codes)
        save(parts, path)
        seen = examine(runtime, path, given, timeout=timeout, **runtime.in_parts)
    return tuple(_compared(cut, references, seen.outputs, runtime.title) for cut in cuts)


def require_layers(model: ir.Model, *, data: bool) -> list[Cut]:
    """Where a model can be taken apart; to be asked before anything is run.

    Args:
        model: with its quantizers.
        data: whether there are samples.

    Raises:
        OptionError: there is no sample, or nothing to take apart.
    """
    if not data:
        raise OptionError("comparing layers needs data", hint="Give samples with --data")
    cuts = find_cuts(model)
    if not cuts and (others := set(quantizing(model)) & _ROUNDING_FLOATS):
        named = " and ".join(sorted(others))
        what = (
            f"layers are compared at the integers of QuantizeLinear, and this artifact has {named}, which gives floats"
        )
        raise OptionError(what, hint="Leave --layers out: the outputs are compared")
    if not cuts:
        raise OptionError(
            "the artifact has no quantizers between its layers to split it at: it is float, only its weights are "
            "integers, ranges are taken at run time, or the scales are inside of its operators, as of QLinearConv, or "
            "in a table beside it",
            hint="Leave --layers out, or write the artifact in a format that has quantizers",
        )
    return cuts


def _compared(cut: Cut, references: Sequence[Arrays], got: Sequence[Arrays], title: str) -> LayerAgreement:
    meter = ErrorMeter()
    values = differing = steps = 0
    for index, (reference, result) in enumerate(zip(references, got, strict=True)):
        zero = int(cut.numbers.zero_point)
        mine = reference[cut.codes].astype(np.int32) - zero
        found = in_shape_of(mine, result[cut.codes]) if cut.codes in result else None
        if found is None or found.shape != mine.shape:
            shape = "no integers" if found is None else f"integers of shape {found.shape}"
            what = f"{title} gives {shape} for tensor '{cut.tensor}' of {cut.layer}"
            raise VerificationError(f"{what}, which has shape {mine.shape}")
        other = found.astype(np.int32) - zero
        distance = np.abs(mine - other)
        values += distance.size
        differing += int(np.count_nonzero(distance))
        steps = max(steps, int(distance.max(initial=0)))
        meter.update(mine.astype(np.float32), other.astype(np.float32), index)
    return LayerAgreement(cut.tensor, cut.layer, values, differing, steps, meter.result().sqnr)
