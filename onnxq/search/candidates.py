"""What is tried at the speed of the default: other range methods, then algorithms, each from cheap to dear."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from onnxq.options import Options
from onnxq.search.attempt import Candidate

__all__ = ["algorithms", "default", "ranges"]

_RANGES = ("minmax", "percentile:99.99", "percentile:99.9", "entropy", "lsq")
_OTHER_RANGES = ("mse", "std", "ema")
"""Installed, and left out: the default, and two that are hardly ever better than those tried."""

# Numbers first, which cost no speed; then what may add operators; then what takes minutes.
_ALGORITHMS = (
    ("equalize", "bias_correction"),
    ("seqmse", "bias_correction"),
    ("gptq", "bias_correction"),
    ("equalize", "gptq", "bias_correction"),
    ("smoothquant", "bias_correction"),
    ("outliers", "bias_correction"),
    ("adaround", "bias_correction"),
    ("adaquant",),
    ("reconstruct",),
)


def default(options: Options) -> Candidate:
    """What the options ask for."""
    return Candidate("default", "", options)


def ranges(options: Options, installed: Collection[str]) -> list[Candidate]:
    """Other range methods; none where the user named one.

    Args:
        options: what the user asked for.
        installed: names of range methods.
    """
    if options.range != Options().range:
        return []
    known = {*(text.partition(":")[0] for text in _RANGES), *_OTHER_RANGES}
    wanted = [text for text in _RANGES if text.partition(":")[0] in installed]
    wanted += sorted(set(installed) - known)
    return [Candidate("range", text, replace(options, range=text)) for text in wanted]


def algorithms(options: Options, installed: Collection[str]) -> list[Candidate]:
    """Algorithms, alone and together; none where the user named some. Those not installed are left out.

    Args:
        options: the best so far.
        installed: names of algorithms.
    """
    if options.algorithms:
        return []
    known = {name for names in _ALGORITHMS for name in names}
    wanted = [names for names in _ALGORITHMS if set(names) <= set(installed)]
    wanted += [(name,) for name in sorted(set(installed) - known)]
    found = [Candidate("algorithm", ", ".join(names), replace(options, algorithms=names)) for names in wanted]
    if options.effort != "best":
        found.append(Candidate("algorithm", "effort best", replace(options, effort="best")))
    return found
