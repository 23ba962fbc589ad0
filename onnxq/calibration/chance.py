"""Which sample stands for those beside it: as if by lot, but always the same.

Data has rhythms: a decoder's prefills and single steps in turn, classes in a cycle. Every second or fourth sample would
be of one kind then.
"""

from __future__ import annotations

__all__ = ["drawn", "drawn_of", "lot", "one_of_each_pair"]

_BITS = (1 << 64) - 1


def lot(index: int) -> int:
    """A number of 64 bits that nobody could tell from random ones; another for each index of a sample.

    The last step of SplitMix64 (Steele, Lea & Flood, Fast splittable pseudorandom number generators, 2014).
    """
    mixed = (index + 1) * 0x9E3779B97F4A7C15 & _BITS
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _BITS
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _BITS
    return mixed ^ mixed >> 31


def drawn(start: int, stop: int) -> int:
    """The index in a range, not empty, whose lot is the smallest."""
    return min(range(start, stop), key=lot)


def drawn_of(total: int, most: int) -> list[int]:
    """The indices of at most ``most`` of ``total`` samples, in order: one of each of as many equal parts of them."""
    count = min(total, most)
    return [drawn(i * total // count, (i + 1) * total // count) for i in range(count)]


def one_of_each_pair(count: int) -> tuple[list[int], list[int]]:
    """The indices of ``count`` samples in two parts: of each pair of neighbours one, as if by lot, and the others.

    A last one without a neighbour is in the first part.
    """
    chosen = [drawn(at, min(at + 2, count)) for at in range(0, count, 2)]
    return chosen, sorted(set(range(count)) - set(chosen))
