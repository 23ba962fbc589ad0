"""Ranges too narrow for the data, where the samples that judge do not show it.

A range that cuts off what rare samples hold looks better on all others, and on the few that judge: they get finer
steps. The statistics have seen every sample. Single values far out are another matter, which may well be cut off: the
ten-thousandth of the values that is furthest from zero does not count here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from onnxq.calibration.bin_error import Bins
from onnxq.calibration.histogram import KEYS
from onnxq.calibration.statistics import Statistics, TensorStatistics
from onnxq.plan import Plan
from onnxq.qparams import QParams
from onnxq.spec import Scheme

__all__ = ["cut_off"]

_MOST = 6.0
"""dB by which noise on a tensor may grow: ranges that serve all samples cost up to 5, those that lose some 18 to 24."""
_FURTHEST = 1e-4
"""Share of the values that does not count."""


def cut_off(
    plan: Plan, before: Mapping[str, QParams], after: Mapping[str, QParams], statistics: Statistics
) -> tuple[str, float] | None:
    """The tensor that loses most on all the data by other ranges, and how many dB; None where none loses much.

    Args:
        plan: where both quantize.
        before: parameters by site name.
        after: parameters by site name, with the other ranges.
        statistics: of the model.
    """
    lost: dict[str, float] = {}
    for site in plan.sites:
        stats = statistics.tensors.get(site.source)
        old, new = before.get(site.name), after.get(site.name)
        if site.role != "activation" or site.spec.scheme is not Scheme.UNIFORM:
            continue
        if stats is None or not stats.count or old is None or new is None or old == new:
            continue
        bins = Bins(_without_furthest(stats))
        was, now = (float(bins.exact(_one(qparams))[0]) for qparams in (old, new))
        if was > 0 and now > 0:
            lost[site.tensor] = max(10 * math.log10(now / was), lost.get(site.tensor, 0.0))
    worst = max(lost, key=lost.__getitem__, default="")
    return (worst, lost[worst]) if lost.get(worst, 0.0) > _MOST else None


def _without_furthest(stats: TensorStatistics) -> TensorStatistics:
    keys = np.flatnonzero(stats.counts)
    keys = keys[np.argsort(-(keys % (KEYS // 2)), kind="stable")]  # by magnitude, the largest first
    numbers = stats.counts[keys]
    counts = stats.counts.copy()
    counts[keys] -= np.clip(int(_FURTHEST * stats.count) - (np.cumsum(numbers) - numbers), 0, numbers)
    return replace(stats, counts=counts)


def _one(qparams: QParams) -> QParams:
    """As a list of one candidate."""
    return replace(qparams, scale=qparams.scale.reshape(1), zero_point=qparams.zero_point.reshape(1))
