"""The noise that each part of a model makes at the outputs, at each width, in a bounded number of runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from onnxq.algorithms.bits.budget import FLOAT
from onnxq.console.progress import Reporter
from onnxq.measuring.probe import Part, Probe
from onnxq.survey import Record, runs_needed, survey

__all__ = ["part_noise"]

_MEASURED = 3
"""Widths that are measured; on an image net of 47 layers all six, three and two of them led to the same choice."""


def part_noise(
    probe: Probe, parts: Sequence[Part], widths: Mapping[str, Sequence[int]], limit: int, reporter: Reporter
) -> dict[Part, dict[int, float]]:
    """Noise over signal at the worst output of each part alone, at each width.

    At most three widths are measured, and groups of neighbours where there are too many parts. Between
    the widths measured, noise over squared error of the weights is interpolated; a group's noise is shared out by the
    squared errors.

    Args:
        probe: measures.
        parts: layers and activations.
        widths: role → widths; ``FLOAT`` makes no noise.
        limit: largest number of measurements.
        reporter: shows progress.
    """
    groups = [[part for part in parts if part.role == role] for role in widths]
    integers = [[bits for bits in widths[role] if bits != FLOAT] for role in widths]
    shares = [limit * len(group) // max(1, len(parts)) for group in groups]
    seen = [
        _spread(integer, min(_MEASURED, share // max(1, len(group))))
        for group, integer, share in zip(groups, integers, shares, strict=True)
    ]
    needed = [runs_needed(len(g), len(s), share) if g else 0 for g, s, share in zip(groups, seen, shares, strict=True)]
    found: dict[Part, dict[int, float]] = {}
    with reporter.phase("mixed precision", total=sum(needed), unit="runs") as advance:
        for k, group in enumerate(groups):
            before = sum(needed[:k])
            records = survey(probe, group, seen[k], shares[k], lambda done, before=before: advance(before + done))  # type: ignore[misc]
            for record in records:
                found.update(_shared(probe, record, integers[k]))
    return found


def _spread(widths: Sequence[int], most: int) -> list[int]:
    """At most so many of the widths, but two, evenly spread, the narrowest and widest among them."""
    most = max(2, most)
    if len(widths) <= most:
        return list(widths)
    return sorted({widths[round(k * (len(widths) - 1) / (most - 1))] for k in range(most)})


def _shared(probe: Probe, record: Record, widths: Sequence[int]) -> dict[Part, dict[int, float]]:
    errors = {part: probe.errors(part, widths) for part in record.parts}
    totals = [math.fsum(e[k] for e in errors.values()) for k in range(len(widths))]
    noise = []
    for k, bits in enumerate(widths):
        if bits in record.noise:
            noise.append(record.worst(bits))
        else:
            noise.append(_between(record, widths, totals, bits) * totals[k])
    shares = {
        part: [own[k] / total if total > 0 else 1 / len(errors) for k, total in enumerate(totals)]
        for part, own in errors.items()
    }
    return {
        part: {**{bits: noise[k] * share[k] for k, bits in enumerate(widths)}, FLOAT: 0.0}
        for part, share in shares.items()
    }


def _between(record: Record, widths: Sequence[int], totals: Sequence[float], bits: int) -> float:
    """Noise over squared error at a width that was not measured."""
    known = [
        (b, math.log(record.worst(b) / totals[k]))
        for k, b in enumerate(widths)
        if b in record.noise and totals[k] > 0 and 0 < record.worst(b) < math.inf
    ]
    return math.exp(np.interp(bits, [b for b, _ in known], [ratio for _, ratio in known])) if known else 0.0
