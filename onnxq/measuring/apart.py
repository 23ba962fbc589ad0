"""Outputs that join numbers of very different sizes: boxes up to 640 beside scores up to 1.

The SQNR of such an output is that of the boxes, whatever becomes of the scores: a detector that gives no score above 0
any more has 23 dB. So candidates are compared by what such an output joins.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnxq.calibration.statistics import KeptSample
from onnxq.measuring.joined import Partition, partitions
from onnxq.measuring.mask_values import are_numbers

__all__ = ["far_apart"]

_FAR = 100.0
"""Mean square of an output over that of what it joins, from which on the output does not show it: 20 dB."""


def far_apart(model: ir.Model, samples: Sequence[KeptSample]) -> dict[str, Partition]:
    """Float output → what it joins, where one part is far smaller than the whole over all samples.

    Args:
        model: shapes known.
        samples: with the float model's outputs.
    """
    found = {}
    for output, parts in partitions(model).items() if samples else ():
        arrays = [sample.outputs.get(output) for sample in samples]
        part = next((part for part in parts if _is_far(part, arrays)), None)
        if part is not None:
            found[output] = part
    return found


def _is_far(part: Partition, arrays: Sequence[np.ndarray | None]) -> bool:
    """Whether a part of an output is far smaller than the whole, and no part is missing in a sample."""
    sums, counts = dict.fromkeys(part.names, 0.0), dict.fromkeys(part.names, 0)
    for array in arrays:
        split = part.split(array) if array is not None and array.dtype.kind == "f" else {}
        if not split or any(not values.size for values in split.values()):
            return False
        for name, values in split.items():
            usual = np.where(are_numbers(values), values, 0.0)
            sums[name] += float(np.square(usual, dtype=np.float64).sum())
            counts[name] += values.size
    whole = sum(sums.values()) / sum(counts.values())
    return any(0 < sums[name] / counts[name] < whole / _FAR for name in part.names)
