"""Whether this processor's integer kernels cut off sums of products, so that a result gives other numbers here.

On x86 processors without VNNI instructions onnxruntime adds products of 8-bit integers in pairs, in 16 bits: two of
255 x 127 do not fit, and are cut off. The same file is right on other processors, and here where it is asked for
precision (its session option ``session.x64quantprecision``). What is quantized here for onnxruntime has weights of a
reduced range then (:mod:`onnxq.calibration.reduced`); models that are given, and results of ``--full-range``, have not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import onnx_ir as ir

from onnxq.console.terminal import decibels
from onnxq.errors import OnnxqError
from onnxq.measuring.chosen_rows import Rows
from onnxq.measuring.outputs import NONE, worst_sqnr
from onnxq.ort.session import PRECISE, Session

__all__ = ["Sample", "overflows"]

_ALIKE = 40.0
"""dB between a result with optimizations and without, above which there is nothing to look for."""
_LOST = 6.0
"""dB by which the numbers of exact sums are nearer."""

Sample = tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]]


def overflows(
    result: ir.Model,
    optimized: float | None,
    samples: Iterable[Sample],
    rows: Mapping[str, Rows] = NONE,
    *,
    open_session: Callable[..., Session] = Session,
) -> list[str]:
    """What to say where integer kernels of this processor lose what others do not.

    Args:
        result: runs in onnxruntime with all graph optimizations.
        optimized: SQNR in dB between its outputs with these, and with none.
        samples: feeds, and the outputs without optimizations.
        rows: see :func:`onnxq.measuring.chosen_rows.chosen_rows`.
        open_session: loads a model with the providers and custom operators asked for.

    Returns:
        A warning, or nothing: also where the result does not run with exact sums.
    """
    if optimized is None or optimized >= _ALIKE:
        return []
    try:
        exact = worst_sqnr(open_session(result, precise=True).run, samples, rows)
    except OnnxqError:
        return []
    if not exact >= optimized + _LOST:
        return []
    return [
        f"the integer kernels of this processor cut off sums of products: the result is {decibels(optimized)} from "
        f"what it gives without graph optimizations, {decibels(exact)} with exact sums. x86 processors without VNNI "
        f"instructions do that, others do not. Where it is to run on such, quantize it with --reduce-range (other "
        f"tools: 7-bit weights; a model quantized already: onnxq deploy without --full-range), or set onnxruntime's "
        f"session option {PRECISE} to 1, which is slower"
    ]
