"""Names with parameters, ``"qdrop:drop=0.3"``, for the quantizers and observers of training."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from functools import partial
from typing import TypeVar

from onnxq.errors import OptionError

__all__ = ["parameters_of", "require", "with_parameters"]

Made = TypeVar("Made")


def parameters_of(kind: type[object]) -> dict[str, float]:
    """Parameters of a quantizer or observer with their defaults."""
    found = inspect.signature(kind.__init__).parameters.values()
    return {p.name: p.default for p in found if isinstance(p.default, (int, float))}


def with_parameters(text: str, kinds: Mapping[str, type[Made]], what: str) -> partial[Made]:
    """The class that a text names, with its parameters.

    Args:
        text: ``name``, or ``name:parameter=number,parameter=number``.
        kinds: classes by name.
        what: they are, for the message.

    Raises:
        OptionError: there is none of that name, or a parameter is unknown or no number of its kind.
    """
    name, _, rest = text.partition(":")
    if name not in kinds:
        raise OptionError(f"there is no {what} {name!r}", hint=f"There are {', '.join(sorted(kinds))}")
    known = parameters_of(kinds[name])
    given: dict[str, float] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals or key not in known:
            has = ", ".join(f"{k}={v:g}" for k, v in known.items())
            hint = f"It has {has}; write '{name}:{next(iter(known))}=NUMBER'" if known else "It has none"
            raise OptionError(f"it has no parameter {key!r}", where=f"{what} {name!r}", hint=hint)
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        whole = isinstance(known[key], int)
        if not math.isfinite(number) or (whole and not number.is_integer()):
            kind = "whole number" if whole else "number"
            raise OptionError(f"{value!r} is not a {kind}", where=f"{what} {name!r}, {key}")
        given[key] = int(number) if whole else number
    return partial(kinds[name], **given)


def require(where: str, value: float, low: float, high: float = math.inf) -> None:
    """Hold a parameter against what it may be.

    Raises:
        OptionError: it is below ``low`` or above ``high``.
    """
    if not low <= value <= high:
        span = f"from {low:g} on" if math.isinf(high) else f"between {low:g} and {high:g}"
        raise OptionError(f"{value!r} is not {span}", where=where)
