"""Which processor a result is made for: one whose sums of 8-bit products overflow (x86-64 without VNNI), or another.

Weights have a reduced range for the former, and integer layers cost more. The options say which it is; else it is this
machine's, for targets that run on one like it.
"""

from __future__ import annotations

from onnxq.backend import Backend
from onnxq.options import Options

__all__ = ["for_processor", "reduces"]


def reduces(target: Backend, options: Options) -> bool:
    """Whether weights are to have a reduced range, see :mod:`onnxq.calibration.reduced`."""
    if options.reduce_range is None:
        return target.overflows is not None and target.overflows()
    return options.reduce_range


def for_processor(target: Backend, options: Options) -> Backend:
    """The target with the costs of the processor that is meant."""
    if target.overflowing is None or not reduces(target, options):
        return target
    return target.overflowing(target)
