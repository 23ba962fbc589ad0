"""Arithmetic that runs in integers only because its neighbours do, and costs the result much: it stays float.

Such is an Add or a Concat between two layers, or a small last layer (:mod:`onnxq.deciding.cheap_pieces`): in float they
take next to no more time. One scale for all of a tensor may drown a part of it that float arithmetic behind brings back
to size (one row in front of a LayerNormalization, say), and the tensor's own error does not show that. So what these
pieces cost is measured at the outputs: first with all of them in float, then piece by piece.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from onnxq.deciding.rescue import GROUPS, groups
from onnxq.measuring.decibels import noise_of
from onnxq.plan import Plan

__all__ = ["AMPLIFIED", "CHEAP", "FINE", "NARROW", "TIED", "Piece", "costly_in_integers", "stored_together"]

FINE = 40.0
"""dB: where every output has as much, nothing is looked for."""
_LEAST_GAIN = 3.0
"""dB that an output must gain."""
_MOST_LOST = 1.0
"""dB that another may lose."""
_TOO_MUCH = 0.6
"""Of the noise of all pieces: where as much is of those that are not found, the others cannot gain 3 dB. Half would do
where it added up exactly."""
_AUDIBLE = 0.1
"""Of the noise that stays, or of that of 40 dB, from which on a piece's own counts."""

AMPLIFIED = "float arithmetic after it amplifies what its integers leave: {}"
CHEAP = "its integers leave {}, and it costs almost nothing extra in float"
NARROW = "8 bits leave {}"
TIED = "one scale for all that it reads leaves {}"

Piece = tuple[str, ...]


def stored_together(plan: Plan) -> list[Piece]:
    """Float layers whose weights are stored as integers, in the order of the plan; layers that share one together."""
    together = {name: {name: None} for name in plan.stored}
    for site in plan.sites:
        names = [edge.node for edge in site.readers if site.role == "weight" and edge.node in together]
        for name in names[1:]:
            together[names[0]].update(together[name])
            together.update(dict.fromkeys(together[name], together[names[0]]))
    return list(dict.fromkeys(tuple(piece) for piece in together.values()))


def costly_in_integers(
    pieces: Iterable[Piece],
    measure: Callable[[Iterable[str]], Mapping[str, float]],
    advance: Callable[[int], None] = lambda steps: None,
    *,
    most: int = GROUPS,
    cause: str = CHEAP,
    tied: bool = True,
) -> dict[str, str]:
    """The pieces that are better float: those that take much from an output of what it has with all of them in float.

    Each piece is judged by what is lost where it alone runs in integers. Two that share a scale hide each other so:
    with either of them in float, the other costs nothing. Where the pieces found are not enough, they are put back into
    integers one after the other instead, and those stay float that cannot be.

    Args:
        pieces: names of nodes, see :func:`onnxq.deciding.cheap_pieces.cheap_in_float`.
        measure: nodes kept float → SQNR in dB of each float output; all of them are asked for first.
        advance: told how many groups are done, none of them after each of the two measurements that come first.
        most: groups to measure, at most; neighbours are measured together where there are more pieces.
        cause: the reason that is given, ``{}`` standing for the output and its dB.
        tied: pieces may share a scale, so that what they do does not add up; else no more of them are measured once
            those found cannot be enough.

    Returns:
        Node name → reason to keep it float; empty where no output would gain 3 dB, or another would lose 1 dB.
    """
    by_first = {piece[0]: piece for piece in pieces}
    together = groups(list(by_first), most)
    names = [name for piece in by_first.values() for name in piece]
    if not names:
        return {}
    best = measure(names)
    advance(0)
    now = measure(())
    advance(0)
    hurt = _gaining(now, best)
    found: dict[str, str] = {}
    left = dict.fromkeys(hurt, 0.0)  # noise of what has been measured and not been found, a power ratio
    for done, group in enumerate(together if hurt else [], start=1):
        nodes = [name for first in group for name in by_first[first]]
        alone = now if len(nodes) == len(names) else measure(name for name in names if name not in nodes)
        if why := _what_it_costs(hurt, alone, best):
            found.update(dict.fromkeys(nodes, cause.format(why)))
        elif not tied:
            left = {name: noise + _noise(alone.get(name, -math.inf), best[name]) for name, noise in left.items()}
            if all(noise > _TOO_MUCH * _noise(now[output], best[output]) for output, noise in left.items()):
                return {}
        advance(done)
    if not hurt or len(found) == len(names) or (found and _gaining(now, measure(found))):
        return found
    if not tied:
        return {}
    of_groups = [[name for first in group for name in by_first[first]] for group in together]
    return _one_of_several(now, best, of_groups, measure, cause)


def _one_of_several(
    now: Mapping[str, float],
    best: Mapping[str, float],
    together: Sequence[Sequence[str]],
    measure: Callable[[Iterable[str]], Mapping[str, float]],
    cause: str,
) -> dict[str, str]:
    """The pieces that stay float when they are put back into integers one after the other, the last one first.

    Of two of which either would do, the one put back first goes into integers, and the other stays float.
    """
    hurt = _gaining(now, best)
    found: dict[str, str] = {}
    in_float, reached = [name for nodes in together for name in nodes], best
    for nodes in reversed(together):
        others = [name for name in in_float if name not in nodes]
        without = measure(others) if others else now
        if why := _what_it_costs(hurt, without, best):
            found.update(dict.fromkeys(nodes, cause.format(why)))
        else:
            in_float, reached = others, without
    return found if _gaining(now, reached) else {}


def _what_it_costs(hurt: Iterable[str], without: Mapping[str, float], best: Mapping[str, float]) -> str:
    """The output that suffers most, and how much it has left of what it could have; empty where none does."""
    left = {output: without.get(output, -math.inf) for output in hurt}
    added = {output: _added(db, min(best[output], FINE)) for output, db in left.items()}
    worst = max(left, key=lambda output: added[output])
    audible = added[worst] > _AUDIBLE
    return f"output {worst!r} {left[worst]:.0f} dB of {best[worst]:.0f} dB" if audible else ""


def _gaining(now: Mapping[str, float], then: Mapping[str, float]) -> list[str]:
    """Outputs that gain much; none where another loses."""
    if not now.keys() <= then.keys() or any(then[name] < now[name] - _MOST_LOST for name in now if now[name] < FINE):
        return []
    return [name for name in now if now[name] < FINE and then[name] >= now[name] + _LEAST_GAIN]


def _noise(sqnr: float, without: float) -> float:
    """Noise over signal, a power ratio, beyond what there is without it; both given in dB of the signal."""
    return max(noise_of(sqnr) - noise_of(without), 0.0)


def _added(sqnr: float, without: float) -> float:
    """Noise that a piece adds, in units of the noise without it; both given in dB of the signal."""
    if sqnr >= without:
        return 0.0
    return 10 ** ((without - sqnr) / 10) - 1 if math.isfinite(without - sqnr) else math.inf
