"""Integers of 4 bits whose zero points a Sub takes from them when the model is loaded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.graph.values import constant_array, is_constant
from onnxq.qparams import QParams
from onnxq.spec import PerChannel

__all__ = ["Shifted", "moved", "shifted"]

_GRID = {ir.DataType.UINT4: (0, 15), ir.DataType.INT4: (-8, 7)}


class Shifted(NamedTuple):
    """Stored integers and what is taken from them.

    Attributes:
        stored: constant of uint4 or int4.
        points: their zero points, on the same grid, with the axes of the integers, or one for all.
    """

    stored: ir.Value
    points: NDArray[Any]


def shifted(value: ir.Value | None) -> Shifted | None:
    """What a Cast and a Sub, in float, or a Cast, a Sub and a Cast to int8 make a value of; None where they do not."""
    made = value.producer() if value is not None else None
    if made is not None and made.op_type == "Cast" and _to(made) == ir.DataType.INT8:
        made = made.inputs[0].producer() if made.inputs[0] is not None else None
    elif made is not None and value is not None and made.op_type == "Sub" and _cast_to(made) != ir.DataType.FLOAT:
        return None
    if made is None or made.op_type != "Sub":
        return None
    wide = made.inputs[0].producer() if made.inputs[0] is not None else None
    stored, points = wide.inputs[0] if wide is not None and wide.op_type == "Cast" else None, made.inputs[1]
    array = constant_array(points) if is_constant(points) else None
    if stored is None or stored.dtype not in _GRID or not is_constant(stored) or stored.shape is None:
        return None
    if array is None or array.ndim not in (0, len(stored.shape)) or not array.size:
        return None
    low, high = _GRID[stored.dtype]
    whole = np.equal(array, np.rint(array)) & (array >= low) & (array <= high)
    return Shifted(stored, array) if whole.all() else None


def moved(qparams: QParams, found: Shifted) -> QParams | None:
    """The numbers of stored integers, of the scales that a DequantizeLinear has behind the Cast to int8.

    Args:
        qparams: as the DequantizeLinear says.
        found: the integers; None where there is not one zero point for each scale.
    """
    grain, shape = qparams.spec.granularity, [1] * len(found.stored.shape or ())
    if isinstance(grain, PerChannel):
        shape[grain.axis] = qparams.scale.size
    if list(found.points.shape) != shape or qparams.zero_point.any():
        return None
    spec = replace(qparams.spec, bits=4, signed=found.stored.dtype is ir.DataType.INT4, symmetric=False)
    return replace(qparams, spec=spec, zero_point=found.points.astype(np.int64).reshape(qparams.scale.shape))


def _to(cast: ir.Node) -> int:
    return cast.attributes.get_int("to", 0)


def _cast_to(sub: ir.Node) -> int:
    """The type that the Cast in front of a Sub gives; 0 where there is none."""
    cast = sub.inputs[0].producer() if sub.inputs[0] is not None else None
    return _to(cast) if cast is not None and cast.op_type == "Cast" else 0
