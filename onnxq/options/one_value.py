"""Checks of single option values, with one wording for all of them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

from onnxq.errors import OptionError

__all__ = [
    "check_amount",
    "check_bits",
    "check_choice",
    "check_flag",
    "check_int",
    "check_range",
    "is_number",
    "once",
    "plain",
]

_RANGE = re.compile(r"^[A-Za-z][\w.-]*(:[-+.\deE]+)?$")
_BITS = (2, 16)


def plain(value: Any) -> Any:
    """A number of numpy's, or of another library, as Python's own; anything else as it is."""
    if isinstance(value, (bool, int, float)) or not isinstance(value, Real):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


def is_number(value: object) -> bool:
    """Whether something is a finite number of Python's own."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def once(given: Iterable[object], where: str) -> dict[str, Any]:
    """Keys with underscores for dashes, each with what stands for it.

    Args:
        given: keys.
        where: they are.

    Raises:
        OptionError: one is there twice.
    """
    found: dict[str, Any] = {}
    for raw in given:
        key = str(raw).replace("-", "_")
        if key in found:
            spelled = f", as {found[key]!r} and as {raw!r}" if found[key] != raw else ""
            raise OptionError(f"{key!r} is there twice{spelled}", where=where, hint="Leave one of the two out")
        found[key] = raw
    return found


def check_bits(name: str, bits: object) -> None:
    """Refuse what is no number of bits, 2 to 16.

    Raises:
        OptionError: it is none; ``name`` says of what.
    """
    if isinstance(bits, bool) or not isinstance(bits, int) or not _BITS[0] <= bits <= _BITS[1]:
        raise OptionError(f"{bits!r} is not a number of bits from {_BITS[0]} to {_BITS[1]}", where=name)


def check_range(name: str, value: object) -> None:
    """Refuse what cannot be the name of a range method, with its number or without; whether there is one, is not asked.

    Raises:
        OptionError: it cannot.
    """
    if not isinstance(value, str) or not _RANGE.match(value):
        hint = "Write a method's name, or NAME:NUMBER as in percentile:99.99."
        raise OptionError(f"{value!r} is not a range method", where=name, hint=hint)


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Refuse what is none of some words.

    Raises:
        OptionError: it is none of them.
    """
    if value not in choices:
        raise OptionError(f"{value!r} is not one of {', '.join(choices)}", where=name)


def check_flag(name: str, value: object) -> None:
    """Refuse what is neither true nor false nor None.

    Raises:
        OptionError: it is none of them.
    """
    if value is not None and not isinstance(value, bool):
        raise OptionError(f"{value!r} is neither true nor false", where=name)


def check_int(name: str, value: object, least: int) -> None:
    """Refuse what is no whole number, or below the least.

    Raises:
        OptionError: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise OptionError(f"{value!r} is not a whole number of at least {least}", where=name)


def check_amount(name: str, value: object) -> None:
    """Refuse what is no finite number, or below 0.

    Raises:
        OptionError: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise OptionError(f"{value!r} is not a number of at least 0", where=name)
