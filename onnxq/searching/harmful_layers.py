"""The layers that do the most harm: measured once, then given 16-bit activations or kept float, as few as will do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from onnxq.backend import Backend
from onnxq.calibration.statistics import Statistics
from onnxq.console.progress import Reporter
from onnxq.console.terminal import listed
from onnxq.deciding.decide import decide
from onnxq.deciding.decider import Decider
from onnxq.deciding.rescue import Blame
from onnxq.deciding.what_hurts import blame_layers
from onnxq.measuring.picked import as_compared
from onnxq.options import Options
from onnxq.options.override import Override
from onnxq.prepare import Prepared
from onnxq.searching.attempt import Attempt, Candidate
from onnxq.spec import WIDE

__all__ = ["LEVELS", "climb", "in_float", "measure", "wide"]

LEVELS = ("16 bits", "float")
"""What :func:`wide` and :func:`in_float` try."""

_LEAST_IN_INTEGERS = 0.25
"""Share of the layers' cost that stays in integers: with less the result would be the float model."""
_NONE: Mapping[str, str] = MappingProxyType({})

Rung = Callable[[int], Candidate]


def measure(
    prepared: Prepared, target: Backend, options: Options, statistics: Statistics, reporter: Reporter
) -> list[Blame]:
    """What each layer does to the outputs alone, weights rounded to nearest; the most harm for its cost first."""
    plain = replace(options, algorithms=(), effort="fast")
    model, statistics = as_compared(prepared.for_target(target, plain).model, statistics)
    decider = Decider(model, target, plain, statistics)
    records, _ = blame_layers(decider, decide(decider), reporter)
    return sorted((r for r in records if r.noise > 0), key=lambda r: -r.noise / max(r.cost, 1e-12))


def wide(options: Options, records: Sequence[Blame], basis: str = "") -> tuple[int, Rung]:
    """How many groups of layers there are to widen, and the candidate with the worst ``k`` at 16-bit activations.

    Args:
        options: for the other layers.
        records: what layers do to the outputs, the worst first.
        basis: name of the attempt that has these options, for candidates whose names are to tell.
    """

    def rung(k: int) -> Candidate:
        names = _names(records[:k])
        override = (*options.override, *((name, Override(act_bits=WIDE)) for name in names))
        return Candidate(LEVELS[0], _layers(names, basis), replace(options, override=override))

    return (len(records) if (options.act_bits or 8) < WIDE else 0), rung


def in_float(
    options: Options, records: Sequence[Blame], basis: str = "", functions: Mapping[str, str] = _NONE
) -> tuple[int, Rung]:
    """How many groups of layers may stay float, and the candidate with the worst ``k`` float; see :func:`wide`.

    Args:
        options: see there.
        records: see there.
        basis: see there.
        functions: activation function → the layer that it is computed together with. It stays float with it: data has
            not seen the tensor between the two.
    """
    room = (1.0 - _LEAST_IN_INTEGERS) * sum(r.cost for r in records)
    spent, chosen = 0.0, list[Blame]()
    for record in records:
        if spent + record.cost <= room:
            chosen.append(record)
            spent += record.cost

    def rung(k: int) -> Candidate:
        names = _names(chosen[:k])
        behind = [f"node:{function}" for function, layer in functions.items() if layer in names]  # none of its type
        exclude = (*options.exclude, *names, *behind)
        return Candidate(LEVELS[1], _layers(names, basis), replace(options, exclude=exclude))

    return len(chosen), rung


def climb(most: int, rung: Rung, attempt: Callable[[Candidate], Attempt]) -> Attempt | None:
    """The attempt with the fewest layers that meets the target: 1, 2, 4 … groups, then halving in between.

    Args:
        most: number of groups.
        rung: number of groups → candidate.
        attempt: makes and measures a candidate.
    """
    low, k, found = 0, 1, None
    while most:
        tried = attempt(rung(k))
        if tried.meets:
            found = tried
            break
        low = k
        if k == most:
            return None
        k = min(2 * k, most)
    high = k
    while high - low > 1:
        middle = (low + high) // 2
        tried = attempt(rung(middle))
        if tried.meets:
            high, found = middle, tried
        else:
            low = middle
    return found


def _names(records: Sequence[Blame]) -> list[str]:
    return [name for record in records for name in record.nodes]


def _layers(names: Sequence[str], basis: str) -> str:
    return f"{len(names)} worst: {listed(names, 2)}{', on ' if basis else ''}{basis}"
