"""Are the scale and zero point that a file holds numbers that can be computed with?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.errors import BackendError, ModelError
from onnxq.graph.traverse import describe
from onnxq.qparams import QParams
from onnxq.spec import PerChannel, QuantSpec, Scheme

__all__ = ["check_numbers", "check_table_numbers"]

_LARGEST = float(np.finfo(np.float32).max) * (1 + 1e-6)
"""What all integers but the outermost must stay below: a scale is rounded."""
_FAR = 1 << 31
"""No zero point is as far from the integers."""
_HINT = (
    "The file is damaged, or a tool wrote numbers that most runtimes cannot compute with, as of a mask of minus "
    "infinity: have it leave that tensor in float"
)


def check_numbers(
    node: ir.Node,
    spec: QuantSpec,
    scale: NDArray[np.float32],
    zero_point: NDArray[np.float32] | NDArray[np.int64],
    *,
    stored: bool = False,
    beyond: bool = False,
) -> None:
    """Checks the parameters that a quantizer in a model was written with.

    Args:
        node: the quantizer, named in the errors.
        spec: the integers of its grid.
        scale: as it stands in the file: one number, or one for each channel.
        zero_point: whole numbers, the same shape.
        stored: of integers that are stored, a scale may be 0, as that of a bias is whose two scales are very small.
        beyond: the zero point may be none of the integers, as that of weights of one sign is.

    Raises:
        ModelError: a scale is no number or below 0, a zero point is not on the grid, the two are not of one shape, or
            the grid reaches beyond float32 by more than its outermost integer. By that one it does where a mask of the
            lowest float was quantized: symmetrically nothing becomes it, and with 16 bits it stands for that mask.
    """
    fault = _fault(spec, scale, zero_point, stored=stored, beyond=beyond)
    if fault is not None:
        raise ModelError(fault, where=describe(node), hint=_HINT)


def check_table_numbers(
    name: str,
    qp: QParams,
    shape: Sequence[int | ir.SymbolicDim] | None,
    *,
    stored: bool,
    beyond: bool = False,
) -> None:
    """Checks the parameters that a table has for a tensor.

    Args:
        name: of the tensor, named in the errors.
        qp: as the table has them.
        shape: of the tensor, ``None`` where it is not known.
        stored: see :func:`check_numbers`.
        beyond: likewise.

    Raises:
        BackendError: as in :func:`check_numbers`, or there are not as many numbers as the tensor has channels.
    """
    spec = qp.spec
    fault = None
    if not isinstance(spec.bits, int) or not (2 <= spec.bits <= 16 or spec.bits == 32):
        fault = f"there is no grid of {spec.bits!r} bits"
    elif spec.scheme is Scheme.UNIFORM:
        fault = _fault(spec, qp.scale, qp.zero_point, stored=stored, beyond=beyond)
    if fault is None and isinstance(spec.granularity, PerChannel) and shape is not None:
        axis = spec.granularity.axis
        size = shape[axis] if -len(shape) <= axis < len(shape) else 0
        if isinstance(size, int) and size != qp.scale.size:
            fault = f"it has {qp.scale.size} scales for {size} channels"
    elif fault is None and not isinstance(spec.granularity, PerChannel) and qp.scale.ndim:
        fault = f"it has {qp.scale.size} scales, and is quantized with one"
    if fault is not None:
        raise BackendError(fault, where=f"the table's entry of tensor {name!r}", hint=_HINT)


def _fault(
    spec: QuantSpec,
    scale: NDArray[np.float32],
    zero_point: NDArray[np.float32] | NDArray[np.int64],
    *,
    stored: bool,
    beyond: bool,
) -> str | None:
    """What is wrong with the numbers of a uniform grid."""
    if scale.ndim > 1 or not scale.size or zero_point.shape != scale.shape:
        return f"scales of shape {scale.shape} and zero points of shape {zero_point.shape} are not one for each channel"
    if not (np.isfinite(scale).all() and (scale >= 0 if stored else scale > 0).all()):
        return "a scale is not a finite number above 0"
    count, lowest = 1 << spec.bits, -(1 << (spec.bits - 1)) if spec.signed else 0
    offset = zero_point.astype(np.float64) - lowest
    least, most = (-_FAR, count + _FAR) if beyond else (0, count)
    if not ((offset >= least) & (offset < most)).all():  # also where it is NaN
        return f"a zero point is not one of {count} integers from {lowest}"
    reach = np.maximum(offset, count - 1 - offset)
    if ((reach - 1) * scale.astype(np.float64) > _LARGEST).any():
        return "the range of its integers goes beyond the largest float32 number"
    return None
