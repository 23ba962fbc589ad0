"""What a target cannot run or take, as ``onnxq check`` says: a user who quantizes without it is told as well."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.backend import Backend
from onnxq.checks.lacks import lacks
from onnxq.options import Options

__all__ = ["lacking"]


def lacking(model: ir.Model, target: Backend, options: Options) -> list[str]:
    """A warning for each reason for which a target cannot run nodes of a float model, or take its inputs, with the
    first of them.

    Args:
        model: in the form that the target wants.
        target: see :func:`onnxq.checks.lacks.lacks`.
        options: how it is quantized.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for finding in lacks(model, target, options):
        if finding.level != "note":
            found.setdefault((finding.what, finding.hint), []).append(finding.where)
    warnings = []
    for (what, hint), places in found.items():
        more = f" and {len(places) - 1} more" if len(places) > 1 else ""
        warnings.append(f"{places[0]}{more}: {what}{f'. {hint}' if hint else ''}")
    return warnings
