"""What each effort does: which algorithms run, and how many samples they need."""

from __future__ import annotations

from onnxq.options import Options

__all__ = ["TRIED", "UNTRIED", "algorithms_of", "improves", "learns", "samples_to_keep"]

TRIED = "best: "
"""How notes begin that say what effort ``best`` has tried."""
UNTRIED = "best, the time was up before: "
"""How the note begins that says what it has not."""
_VERIFIED = 32
_LEARNED_FROM = 64
_OF_FEW_BITS = 4, 256
"""Bits of weights up to which so many samples are held back instead: learning gains up to 1 dB from them, at 8 bits
next to nothing."""


def algorithms_of(options: Options) -> tuple[str, ...]:
    """The algorithms that run, as the user would write them: those asked for, else those of the effort."""
    if options.algorithms:
        return options.algorithms
    return ("bias_correction",) if options.effort != "fast" and options.bias_correction else ()


def improves(options: Options) -> bool:
    """Whether more is tried on top of the default result."""
    return options.effort == "best" and not options.algorithms


def learns(options: Options) -> bool:
    """Whether algorithms may learn from samples held back, see :mod:`onnxq.calibration.roles`."""
    return options.effort == "best" or bool(options.algorithms)


def samples_to_keep(options: Options) -> int:
    """How many samples the statistics hold back."""
    if options.keep is not None:
        return options.keep
    if not learns(options):
        return _VERIFIED
    few, samples = _OF_FEW_BITS
    asked = (options.weight_bits, *(change.weight_bits for _, change in options.override))
    return samples if any(bits is not None and bits <= few for bits in asked) else _LEARNED_FROM
