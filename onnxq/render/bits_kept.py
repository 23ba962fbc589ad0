"""Of stored integers that have more bits than their grid: how many the grid has.

ONNX's types have 4, 8 and 16 bits (and 2 from opset 25 on), so integers of 3 bits lie in one of 4. Without a word of it
whoever reads the file, to train it or to write it for another target, takes the wider grid for theirs. The word is an
entry of the tensor's metadata; other tools pass over it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.qparams import QParams
from onnxq.spec import QuantSpec

__all__ = ["as_marked", "mark_bits", "marked_bits"]

_KEY = "onnxq.bits"
_LEAST = 2


def mark_bits(stored: ir.Value, spec: QuantSpec) -> None:
    """Say how many bits the grid of stored integers has, where their type has more.

    Args:
        stored: a constant of integers; its tensor's metadata is changed.
        spec: of its grid.
    """
    if spec.bits < spec.storage_bits and stored.const_value is not None:
        stored.const_value.metadata_props[_KEY] = str(spec.bits)


def marked_bits(stored: ir.Value) -> int | None:
    """How many bits the grid of stored integers is marked with; None where it is not marked."""
    said = stored.const_value.metadata_props.get(_KEY, "") if stored.const_value is not None else ""
    return int(said) if said.isdecimal() and int(said) >= _LEAST else None


def as_marked(qparams: QParams, stored: ir.Value, array: NDArray[Any]) -> QParams:
    """The numbers of stored integers with the bits that they are marked with.

    Args:
        qparams: as their type says.
        stored: the constant.
        array: its integers.

    Returns:
        ``qparams`` itself where there is no mark, or one that does not hold for the integers and their zero points.
    """
    bits = marked_bits(stored)
    if bits is None or bits >= qparams.spec.bits:
        return qparams
    spec = replace(qparams.spec, bits=bits)
    held = all(not a.size or (spec.qmin <= a.min() and a.max() <= spec.qmax) for a in (array, qparams.zero_point))
    return replace(qparams, spec=spec) if held else qparams
