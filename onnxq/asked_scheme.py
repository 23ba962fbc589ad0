"""Zero points and scales per channel: what options ask for, held against a target's table."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from onnxq.errors import OptionError
from onnxq.options import Options
from onnxq.spec import Scheme

if TYPE_CHECKING:
    from onnxq.backend import Backend

__all__ = ["check_scheme", "for_given_numbers"]

_HINT = "Leave it out"


def check_scheme(target: Backend, options: Options) -> None:
    """Refuse zero points and scales per channel that the target has not.

    Raises:
        OptionError: the options ask for zero points where activations have none, for scales per channel where no row
            has an axis, for a reduced range of int8 weights where it has none of these, for zero points of weights
            where they have none or not in the widths asked for, or for weights without where the target's have them.
    """
    if target.activation.symmetric and (where := _where(options, "symmetric", False)):
        raise OptionError(f"{target.name} has no zero points", where=where, hint=_HINT)
    if not target.has_channels and (where := _where(options, "per_channel", True)):
        raise OptionError(f"{target.name} has one scale for all of a weight", where=where, hint=_HINT)
    if options.reduce_range and (target.weight.scheme is not Scheme.UNIFORM or not target.weight.signed):
        raise OptionError(f"{target.name} has no int8 weights", where="reduce_range", hint=_HINT)
    if not target.weight.symmetric and (where := _where(options, "weight_symmetric", True)):
        raise OptionError(f"{target.name} has zero points of weights always", where=where, hint=_HINT)
    if target.weight.symmetric and (where := _where(options, "weight_symmetric", False)):
        _check_widths(target, options, where)


def for_given_numbers(target: Backend, options: Options) -> Options:
    """What is planned for numbers that are given or trained: all that can be is quantized, and weights are symmetric.

    Those of a model keep the zero points that they have, where the target has a place for them; those to be trained
    have none unless they are asked for, or the target has no others.
    """
    symmetric = options.weight_symmetric
    if symmetric is None and target.weight.symmetric:
        symmetric = True
    return replace(options, placement="all", weight_symmetric=symmetric, reduce_range=bool(options.reduce_range))


def _check_widths(target: Backend, options: Options, where: str) -> None:
    """Refuse zero points of weights where none of the widths asked for has them."""
    if not target.asymmetric_weights:
        raise OptionError(f"{target.name} has no zero points of weights", where=where, hint=_HINT)
    of_all, _ = target.bits(options)
    widths = {of_all, *(change.weight_bits for _, change in options.override if change.weight_bits)}
    if not widths & target.asymmetric_weights:
        known = ", ".join(map(str, sorted(target.asymmetric_weights)))
        hint = f"Ask for weights of {max(target.asymmetric_weights)} bits, or leave it out"
        raise OptionError(f"{target.name} has zero points of weights of {known} bits only", where=where, hint=hint)


def _where(options: Options, field: str, value: bool) -> str | None:
    """Which of the options says so: its name, or the override."""
    if getattr(options, field) is value:
        return field
    return next((f"override {pattern!r}" for pattern, o in options.override if getattr(o, field) is value), None)
