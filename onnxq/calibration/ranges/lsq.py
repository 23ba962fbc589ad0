"""The range of the step size that LSQ starts from: ``scale = 2 * mean(|x|) / sqrt(Q)``.

``Q`` is the number of integers on the larger side of zero: ``qmax`` for a symmetric signed grid and for a tensor
without negative values, half of the integers for an asymmetric grid over both signs. The range is ``scale * Q`` on
each side, not beyond the values seen. Takes no parameter.

Source: Esser et al., "Learned step size quantization" (2020), section 2.1.
"""

from __future__ import annotations

import math

from onnxq.calibration.statistics import TensorStatistics
from onnxq.spec import QuantSpec

__all__ = ["NAME", "PARAMETER", "UNIFORM", "select"]

NAME = "lsq"
PARAMETER = False
UNIFORM = True
"""Its steps are those of a uniform grid."""


def select(stats: TensorStatistics, spec: QuantSpec, parameter: float | None = None) -> tuple[float, float]:
    """The range of LSQ's first step size.

    Args:
        stats: statistics of a tensor with at least one value.
        spec: how the tensor is quantized.
        parameter: None, there is none.

    Returns:
        ``(lo, hi)``, within the values seen.
    """
    steps = spec.qmax - spec.qmin
    one_sided = not spec.symmetric and (stats.min >= 0.0 or stats.max <= 0.0)
    larger = steps if one_sided else max(steps // 2, 1)
    reach = 2.0 * stats.sum_abs / stats.count * math.sqrt(larger)  # scale * larger
    return max(min(stats.min, 0.0), -reach), min(max(stats.max, 0.0), reach)
