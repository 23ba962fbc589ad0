"""Are the scale and zero point that a file holds numbers that can be computed with?"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.errors import ModelError
from onnxq.graph.traverse import describe
from onnxq.spec import QuantSpec

__all__ = ["check_numbers"]

_LARGEST = float(np.finfo(np.float32).max)
_HINT = "The file is damaged, or a tool wrote numbers that no runtime can compute with"


def check_numbers(
    node: ir.Node,
    spec: QuantSpec,
    scale: NDArray[np.float32],
    zero_point: NDArray[np.float32] | NDArray[np.int64],
    *,
    stored: bool = False,
) -> None:
    """Checks the parameters that a quantizer was written with.

    Args:
        node: the quantizer, named in the errors.
        spec: the integers of its grid.
        scale: as it stands in the file, any shape.
        zero_point: whole numbers, the same shape or one number.
        stored: of integers that are stored, a scale may be 0, as that of a bias is whose two scales are very small.

    Raises:
        ModelError: a scale is no number or below 0, a zero point is not on the grid, or the grid reaches beyond
            float32.
    """
    where = describe(node)
    if not (np.isfinite(scale).all() and (scale >= 0 if stored else scale > 0).all()):
        raise ModelError("a scale is not a finite number above 0", where=where, hint=_HINT)
    count, lowest = 1 << spec.bits, -(1 << (spec.bits - 1)) if spec.signed else 0
    offset = zero_point.astype(np.float64) - lowest
    if not ((offset >= 0) & (offset < count)).all():  # also where it is NaN
        raise ModelError(f"a zero point is not one of {count} integers from {lowest}", where=where, hint=_HINT)
    reach = np.maximum(offset, count - 1 - offset)
    if (reach * scale > _LARGEST).any():
        raise ModelError("the range of its integers goes beyond the largest float32 number", where=where, hint=_HINT)
