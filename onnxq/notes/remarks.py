"""What calibration shows of the data and of the model that the user should know, whatever is made of it.

The samples that statistics hold back are looked at as `onnxq.check` looks at the data, so that a wrong scale of the
pictures is said by every verb that calibrates, for the cost of a few runs of the model's first layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import onnx_ir as ir

from onnxq.calibration.roles import spread
from onnxq.calibration.statistics import KeptSample, Statistics
from onnxq.checks.constant import constant_outputs
from onnxq.checks.data import EMPTY, UNSCALED, Looker
from onnxq.checks.findings import Finding, sentences
from onnxq.checks.fingerprint import Fingerprint
from onnxq.checks.weights import check_weights
from onnxq.errors import ExecutionError
from onnxq.graph.recognition.for_bytes import MOVES
from onnxq.options import Options

__all__ = ["remarks"]

_LOOKED_AT = 8
"""Samples held back that are looked at."""
_RUN = 4
"""Samples that are run through the first layer."""
_ARITHMETIC = ("Add", "BatchNormalization", "Div", "Mul", "Sub")
"""What scales or normalizes pictures inside a model."""


def remarks(
    model: ir.Model, remembered: Fingerprint | None, statistics: Statistics, options: Options
) -> tuple[str, ...]:
    """Warnings as sentences; what :meth:`Statistics.warnings` says already is not among them.

    Args:
        model: as it was calibrated.
        remembered: what it remembered of its training data.
        statistics: of the model.
        options: providers, custom-op library, samples to hold back.
    """
    kept = spread(statistics.kept, _LOOKED_AT)
    others = (f for f in _of_model(model, remembered, statistics, kept, options) if f.level == "warning")
    return sentences([*_of_data(model, remembered, statistics, kept), *others])


def _of_data(
    model: ir.Model, remembered: Fingerprint | None, statistics: Statistics, kept: Sequence[KeptSample]
) -> list[Finding]:
    """What the samples kept show of all, where the statistics do not show otherwise or say it."""
    looker = Looker.of(model)
    for sample in kept:
        looker.look(sample.feeds, sample.place)
    zero = {f"input {t.name!r}" for t in statistics.tensors.values() if t.count and t.min == t.max == 0.0}
    filled = {f"input {t.name!r}" for t in statistics.tensors.values() if t.samples}
    found = [f for f in looker.findings() if f.where not in zero and (f.what != EMPTY or f.where not in filled)]
    said = [f for f in found if f.level == "warning"]
    if remembered is None:  # which would tell whether the model was trained on them
        own = {f"input {v.name!r}" for v in model.graph.inputs if _is_scaled(v)}
        said += [f for f in found if f.what == UNSCALED and f.where not in own]
    return said


def _of_model(
    model: ir.Model,
    remembered: Fingerprint | None,
    statistics: Statistics,
    kept: Sequence[KeptSample],
    options: Options,
) -> list[Finding]:
    """What the model makes of the samples kept; its weights where there are none, or some number is not finite."""
    found = list(constant_outputs(model, [s.feeds for s in kept], [s.outputs for s in kept]).values())
    if remembered is not None:
        with suppress(ExecutionError):  # it is cut from the model as it came, which onnxruntime may be too new for
            found += remembered.compare([sample.feeds for sample in spread(kept, _RUN)], options)
    if not kept or any(tensor.nan or tensor.inf for tensor in statistics.tensors.values()):
        found += check_weights(model)
    return found


def _is_scaled(value: ir.Value) -> bool:
    """Whether the model does arithmetic with an input before anything else."""
    seen, stack = {value}, [value]
    while stack:
        readers = [node for node, _ in stack.pop().uses()]
        if not readers or any(n.op_type not in _ARITHMETIC and n.op_type not in MOVES for n in readers):
            return False
        moved = {made for n in readers if n.op_type not in _ARITHMETIC for made in n.outputs} - seen
        seen |= moved
        stack += moved
    return True
