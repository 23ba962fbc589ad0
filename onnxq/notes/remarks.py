"""What calibration shows of the data and of the model that the user should know, whatever is made of it.

The samples that statistics hold back are looked at as `onnxq.check` looks at the data, so that a wrong scale of the
pictures is said by every verb that calibrates, for the cost of a few runs of the model's first layer.
"""

from __future__ import annotations

from contextlib import suppress

import onnx_ir as ir

from onnxq.calibration.roles import spread
from onnxq.calibration.statistics import Statistics
from onnxq.checks.constant import constant_outputs
from onnxq.checks.data import EMPTY, UNSCALED, Looker
from onnxq.checks.findings import sentences
from onnxq.checks.fingerprint import Fingerprint
from onnxq.checks.for_bytes import MOVES
from onnxq.checks.weights import check_weights
from onnxq.errors import ExecutionError
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
    looker = Looker.of(model)
    for sample in kept:
        looker.look(sample.feeds, sample.index)
    zero = {f"input {t.name!r}" for t in statistics.tensors.values() if t.count and t.min == t.max == 0.0}
    filled = {f"input {t.name!r}" for t in statistics.tensors.values() if t.samples}
    found = [finding for finding in looker.findings() if finding.where not in zero]
    found = [finding for finding in found if finding.what != EMPTY or finding.where not in filled]
    said = [f for f in found if f.level == "warning"]
    if remembered is None:  # which would tell whether the model was trained on them
        own = {f"input {v.name!r}" for v in model.graph.inputs if _is_scaled(v)}
        said += [f for f in found if f.what == UNSCALED and f.where not in own]
    found = list(constant_outputs(model, [s.feeds for s in kept], [s.outputs for s in kept]).values())
    if remembered is not None:
        with suppress(ExecutionError):  # it is cut from the model as it came, which onnxruntime may be too new for
            found += remembered.compare([sample.feeds for sample in spread(kept, _RUN)], options)
    nan = any(tensor.nan for tensor in statistics.tensors.values())
    if not kept or nan or any(tensor.inf for tensor in statistics.tensors.values()):
        found += check_weights(model)
    said += [finding for finding in found if finding.level == "warning"]
    return sentences(said)


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
