"""How loud an output's error is: against its signal over all the data, not that of the few samples at hand.

An output that is next to nothing in those (a mask of an empty picture, a side output that stays dark) has an SQNR that
says nothing; what stays float is not to be decided by it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from onnxq.calibration.roles import spread
from onnxq.calibration.statistics import KeptSample, Statistics
from onnxq.measuring.mask_values import are_numbers, fill_of

__all__ = ["judged", "lifts", "telling"]

_QUIET = 3.0
"""dB below all the data, from which on an output is too quiet in samples to tell what hurts it."""


def lifts(samples: Sequence[KeptSample], statistics: Statistics) -> dict[str, float]:
    """By how much each float output is louder over all the data than in some samples.

    Args:
        samples: where errors are measured.
        statistics: of all the data; outputs that were not observed are judged by all samples held back.

    Returns:
        Output name → dB, 0 or more; infinite where the output is zero throughout the samples.
    """
    found = {}
    for name in {name: None for s in samples for name, values in s.outputs.items() if values.dtype.kind == "f"}:
        filled = any(fill_of(sample.outputs[name]) is not None for sample in samples if name in sample.outputs)
        here, seen = _power(samples, name), None if filled else statistics.tensors.get(name)
        usual = seen.sum_squares / seen.count if seen is not None and seen.count else _power(statistics.kept, name)
        if here == 0:
            found[name] = math.inf
        else:
            found[name] = max(10 * math.log10(usual / here), 0.0) if usual > 0 else 0.0
    return found


def telling(samples: Sequence[KeptSample], most: int, statistics: Statistics) -> Sequence[KeptSample]:
    """At most so many of some samples, by lot; the loudest ones where those leave an output much quieter than all data.

    What hurts an output that is next to empty (of a picture without an object, say) is not what hurts it in use.

    Args:
        samples: to choose from.
        most: how many.
        statistics: of all the data.
    """
    drawn = spread(samples, most)
    if len(drawn) == len(samples):
        return drawn
    louder = lifts(drawn, statistics)
    heard = {name: powers for name in louder if any(powers := [_power([sample], name) for sample in samples])}
    if all(louder[name] <= _QUIET for name in heard):
        return drawn
    share = np.sum([np.asarray(powers) / sum(powers) for powers in heard.values()], axis=0)
    return [samples[k] for k in sorted(np.argsort(-share, kind="stable")[:most])]


def judged(sqnr: Mapping[str, float], louder: Mapping[str, float]) -> dict[str, float]:
    """SQNR in dB of each output, its error held against its signal over all the data; infinite where nothing is known.

    Args:
        sqnr: on some samples.
        louder: what :func:`lifts` gave for these.
    """
    return {name: math.inf if (up := louder.get(name, 0.0)) == math.inf else db + up for name, db in sqnr.items()}


def _power(samples: Iterable[KeptSample], name: str) -> float:
    """Mean square of an output, of what is a number and no mask."""
    total, count = 0.0, 0
    for sample in samples:
        values = sample.outputs.get(name, np.zeros(0)).reshape(-1).astype(np.float64)
        usual = values[are_numbers(values)]
        total += float(np.einsum("i,i->", usual, usual))
        count += usual.size
    return total / count if count else 0.0
