"""What each effort does: which algorithms run, and how many samples they need."""

from __future__ import annotations

import math

from onnxq.console.deadline import after
from onnxq.errors import OptionError
from onnxq.options import Options
from onnxq.options.one_value import check_amount
from onnxq.spec import FEW_BITS

__all__ = ["TRIED", "UNTRIED", "algorithms_of", "end_of", "improves", "learns", "samples_to_keep", "turns"]

TRIED = "best: "
"""How notes begin that say what effort ``best`` has tried."""
UNTRIED = "best, not tried: "
"""How notes begin that say what it has not, and why."""
_VERIFIED = 32
_LEARNED_FROM = 64
_LEARNED_FROM_IN_FEW_BITS = 256
"""Weights of few bits gain up to 1 dB from so many, those of 8 next to nothing."""


def algorithms_of(options: Options) -> tuple[str, ...]:
    """The algorithms that run, as the user would write them: those asked for, else those of the effort."""
    if options.algorithms:
        return options.algorithms
    return ("bias_correction",) if options.effort != "fast" and options.bias_correction else ()


def improves(options: Options) -> bool:
    """Whether more is tried on top of the default result."""
    return options.effort == "best" and not options.algorithms


def turns(options: Options) -> bool:
    """Whether a result of the float model with its channels turned is tried; effort ``best`` has a step of its own."""
    return options.effort == "default" and not options.algorithms


def learns(options: Options) -> bool:
    """Whether algorithms may learn from samples held back, see :mod:`onnxq.calibration.roles`."""
    return options.effort == "best" or bool(options.algorithms)


def samples_to_keep(options: Options) -> int:
    """How many samples the statistics hold back."""
    if options.keep is not None:
        return options.keep
    if not learns(options):
        return _VERIFIED
    asked = (options.weight_bits, *(change.weight_bits for _, change in options.override))
    few = any(bits is not None and bits <= FEW_BITS for bits in asked)
    return _LEARNED_FROM_IN_FEW_BITS if few else _LEARNED_FROM


def end_of(max_minutes: float | None, options: Options) -> float:
    """The time of ``time.monotonic`` at which what takes long ends.

    Raises:
        OptionError: the minutes are no number of at least 0, or nothing here takes long.
    """
    if max_minutes is None:
        return math.inf
    check_amount("max_minutes", max_minutes)
    if not improves(options):
        raise OptionError(
            "has an effect on effort 'best' only, without algorithms of your own choice",
            where="max_minutes",
            hint="Leave it out, or ask for effort 'best'",
        )
    return after(max_minutes)
