"""How little of what stands before arithmetic that amplifies noise has to stay float.

All of it may be most of the model. What it takes to have a signal at the outputs is then measured: noises in front of
such arithmetic do not add up (a power spectrum drowns where both its real and its imaginary part are noisy, and not
where one of them is), so that no part by itself is to blame.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from onnxq.deciding.rescue import GROUPS

__all__ = ["LOST", "least_float"]

LOST = 12.0
"""dB, mean removed: below this the signal of an output counts as lost."""
_LEAST_GAIN = 3.0
"""dB that what stays float must gain."""
_LARGEST_SHARE = 0.75
"""Of the cost, that may stay float: with more the result would hardly be faster than the float model."""
_PIECES = 8
_SOME = 0.5
"""dB that a piece must gain to be taken in on the way."""


def least_float(
    nodes: Sequence[str],
    layers: Iterable[str],
    costs: Mapping[str, float],
    measure: Callable[[Iterable[str]], float],
    most: int = GROUPS,
) -> list[str]:
    """The nodes to keep float, chosen piece by piece by what the outputs gain.

    Args:
        nodes: those in question, in the order of the graph.
        layers: multiply-accumulates; each piece begins with one, neighbours are together where there are many.
        costs: quantized node → its cost, any unit, the nodes in question and all others.
        measure: nodes kept float → SQNR in dB of what varies in the worst output; ``-inf`` where no layer would be left
            in integers.
        most: measurements, at most: a round of pieces that would take more is not begun, but for the first.

    Returns:
        Nothing where no signal is lost, or no part of at most three quarters of the cost brings some of it back.
    """
    before = best = measure(())
    if before >= LOST:
        return []
    left = _pieces(nodes, set(layers))
    room = _LARGEST_SHARE * sum(costs.values())
    chosen: list[str] = []
    measured = 1
    while best < LOST:
        priced = [(sum(costs.get(name, 0.0) for name in piece), piece) for piece in left]
        fitting = [(cost, piece) for cost, piece in priced if cost <= room]
        if not fitting or (chosen and measured + len(fitting) > most):
            break
        tried = [(measure([*chosen, *piece]), cost, piece) for cost, piece in fitting]
        measured += len(tried)
        gained, cost, piece = max(tried, key=lambda found: (min(found[0], LOST), -found[1]))
        if not gained > best + _SOME:
            break
        chosen += piece
        left.remove(piece)
        room -= cost
        best = gained
    return chosen if math.isfinite(best) and best >= before + _LEAST_GAIN else []


def _pieces(nodes: Sequence[str], layers: set[str]) -> list[list[str]]:
    pieces: list[list[str]] = [[]]
    for name in nodes:
        if name in layers and layers.intersection(pieces[-1]):
            pieces.append([])
        pieces[-1].append(name)
    size = -(-len(pieces) // _PIECES)
    grouped = ([name for piece in pieces[at : at + size] for name in piece] for at in range(0, len(pieces), size))
    return [group for group in grouped if group]
