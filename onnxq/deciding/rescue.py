"""Where the result is poor: which layers are to blame, measured one at a time, and the cheapest set of them to keep
float.

Each group of layers is quantized alone and its noise at the outputs measured, without that of what stays quantized in
any case. Noise of different layers adds up closely enough (15.1 dB measured against 15.7 dB predicted on a 36-layer
transformer), so what remains when some layers stay float is known without trying it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from onnxq.measuring.decibels import noise_of

__all__ = [
    "FEW",
    "GROUPS",
    "LEAST_GAIN",
    "POOR",
    "TARGET",
    "Blame",
    "blame",
    "extent",
    "groups",
    "groups_apart",
    "to_keep_float",
]

POOR = 12.0
"""dB: a result below this is worth a search."""
TARGET = 18.0
"""dB to aim for."""
_BROKEN = 10.0
"""dB: layers that alone leave less stay float, whatever they cost."""
_QUIET = 40.0
"""dB: layers that alone leave as much are not to blame; forty such groups together leave 24 dB."""
_LARGEST_SHARE = 0.5
"""Largest share of the cost of the other layers to keep float."""
_MOST = noise_of(_BROKEN)
_LEAST = noise_of(_QUIET)
LEAST_GAIN = 3.0
"""dB that must come of keeping layers float, of giving them more bits, or of giving all their speed up."""
GROUPS = 40
"""Of layers to measure, at most."""
_FEWEST = 8
"""Groups to measure where even these take longer than calibration."""
_CALIBRATION = 2
"""Runs that a sample of calibration stands for: all tensors are looked at."""
_LIGHT = 1e12
"""Multiply-accumulates that a search may take whatever calibration took: some ten seconds of one thread."""
_MANY, _LOADING = 2000, 2e8
"""Nodes from which on loading a model is most of a measurement, and multiply-accumulates in the time for one more."""
FEW = 4
"""Samples to measure on."""


@dataclass(frozen=True, slots=True)
class Blame:
    """What a group of layers does to the outputs when it alone is quantized.

    Attributes:
        nodes: the layers.
        noise: noise over signal at the worst output, a power ratio, beyond that of what is quantized in any case.
        cost: float cost of the layers, any unit.
    """

    nodes: tuple[str, ...]
    noise: float
    cost: float


def blame(
    layers: Mapping[str, float],
    together: Sequence[Sequence[str]],
    attempt: Callable[[Iterable[str]], float],
    advance: Callable[[int], None] = lambda steps: None,
    *,
    in_hope: bool = False,
) -> tuple[list[Blame], float]:
    """Measure groups of layers one at a time.

    Args:
        layers: layer → its float cost.
        together: these layers, in the groups that are measured.
        attempt: layers kept float → SQNR in dB with the others quantized.
        advance: told how many groups are done.
        in_hope: measure them only where all of them in float would gain 3 dB.

    Returns:
        A record a group, and the noise of what is quantized besides them.
    """
    names = list(layers)
    rest = noise_of(attempt(names))
    if not math.isfinite(rest) or (in_hope and not _gains(rest, noise_of(attempt(())))):
        return [], rest
    found = []
    for group in together:
        noise = noise_of(attempt(n for n in names if n not in group))
        found.append(Blame(tuple(group), max(noise - rest, 0.0), sum(layers[n] for n in group)))
        advance(len(found))
    return found, rest


def groups(names: Sequence[str], most: int = GROUPS) -> list[tuple[str, ...]]:
    """Layers as they are measured: one at a time, or neighbours together where there are more than ``most``."""
    size = max(-(-len(names) // most), 1)
    return [tuple(names[start : start + size]) for start in range(0, len(names), size)]


def groups_apart(sorts: Iterable[Sequence[str]], most: int = GROUPS) -> list[tuple[str, ...]]:
    """:func:`groups` of each sort of nodes, of the ``most`` as many as its share of them all, and one at least."""
    sorts = [names for names in sorts if names]
    count = sum(map(len, sorts))
    return [group for names in sorts for group in groups(names, max(most * len(names) // count, 1))]


def extent(macs: int, calibrated: int, nodes: int = 0) -> tuple[int, int]:
    """How far to search: groups of layers at most, and samples to measure each on.

    A group takes about a run of each sample, and of thousands of nodes the time to load them. There are 40 on 4
    samples, but fewer of each where that would take longer than the calibration did, by counts: the same model and data
    give the same result.

    Args:
        macs: multiply-accumulates of a run.
        calibrated: samples of the calibration.
        nodes: of the model.
    """
    runs = max(_CALIBRATION * calibrated, int(_LIGHT / max(macs, 1)))
    samples = FEW if runs >= FEW * _FEWEST else FEW // 2
    loading = _LOADING * max(nodes - _MANY, 0) / max(macs, 1)  # in runs
    return max(_FEWEST, min(GROUPS, int(runs / (samples + loading)))), samples


def to_keep_float(records: Sequence[Blame], rest: float = 0.0) -> list[str]:
    """The layers to keep float: those that alone break the result, then most noise for the least cost.

    Args:
        records: what the layers do.
        rest: noise that stays.

    Returns:
        Nothing where no set within the allowed share of the cost promises a gain.
    """
    chosen = [name for record in records if record.noise > _MOST for name in record.nodes]
    left = [record for record in records if record.noise <= _MOST]
    left.sort(key=lambda r: -r.noise / max(r.cost, 1e-12))
    room = _LARGEST_SHARE * sum(r.cost for r in left)
    for record in list(left):
        if rest + _noise(left) <= noise_of(TARGET):
            break
        if record.cost > room or record.noise <= _LEAST:
            continue
        chosen += record.nodes
        left.remove(record)
        room -= record.cost
    return chosen if _gains(rest + _noise(left), rest + _noise(records)) else []


def _gains(noise: float, before: float) -> bool:
    """Whether noise is so much less than before that layers may stay float for it."""
    return math.isfinite(noise) and noise < before * noise_of(LEAST_GAIN)


def _noise(records: Iterable[Blame]) -> float:
    """Noise of layers together; infinite where one of them gives no numbers."""
    return sum(r.noise for r in records)
