"""Tensors that algorithms have rescaled: a model carries their names, since they no longer compare with the float ones.

Equalization, SmoothQuant, rotation and absorbed biases leave what a model computes as it is, but not its tensors
inside. The mark is metadata of the model, so that it is there whatever file it is written to and read from: name → a
digest of what was done. Two models that have the same of both can be compared.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from onnxq.calibration.moved import Move

__all__ = ["mark_rescaled", "rescaled_apart"]

_KEY = "onnxq.rescaled"
_DIGITS = 12


def mark_rescaled(model: ir.Model, tensors: Sequence[str] | Mapping[str, Move]) -> None:
    """Say in a model's metadata which of its tensors have been changed, on top of what it says already.

    Args:
        model: changed.
        tensors: names; with what was done to each where that is known.
    """
    before = _marks(model)
    marks = dict(before)
    for name in tensors:
        move = tensors[name] if isinstance(tensors, Mapping) else None
        digest = hashlib.sha256(before.get(name if move is None else move.source, "").encode())
        if move is not None:
            for number in (move.divisor, move.shift, move.least):
                digest.update(np.asarray(number, np.float64).tobytes())
            digest.update(move.rotation)
        marks[name] = digest.hexdigest()[:_DIGITS]
    if marks:
        model.metadata_props[_KEY] = json.dumps(marks, sort_keys=True, ensure_ascii=False)


def rescaled_apart(first: ir.Model, second: ir.Model) -> set[str]:
    """Names of tensors that were changed in one of two models, or otherwise in the other."""
    one, other = _marks(first), _marks(second)
    return {name for name in {**one, **other} if one.get(name) != other.get(name)}


def _marks(model: ir.Model) -> dict[str, str]:
    try:
        found = json.loads(model.metadata_props.get(_KEY, "{}"))
    except json.JSONDecodeError:  # not what onnxq wrote
        return {}
    return {str(name): str(mark) for name, mark in found.items()} if isinstance(found, dict) else {}
