"""Sizes asked for of a model's inputs: the ways to write them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from onnxq.errors import OptionError
from onnxq.options.one_value import plain

__all__ = ["GivenShapes", "Sizes", "parse_shapes", "sizes_of"]

Sizes = tuple[int | None, ...]
"""None leaves an axis as it is."""
GivenSizes = int | str | Sequence[int | None]
GivenShapes = str | Mapping[str, GivenSizes] | Collection[str]
"""What :func:`parse_shapes` reads."""

_MOST = 2**63 - 1
_SIZES = re.compile(r"(\d+|\*)([x,](\d+|\*))*")
_EXAMPLE = (
    "Write the sizes of an input, as in images=1x3x480x480 (* leaves one as it is), or a free size, as in batch=1"
)


def parse_shapes(given: object) -> tuple[str, ...]:
    """Shapes as ``"NAME=1x3x480x480"``.

    Args:
        given: one such string or several, with ``x`` or ``,`` between sizes, or names with sizes.

    Raises:
        OptionError: it is something else, a name is there twice, or a size is 0 or none of ONNX.
    """
    if isinstance(given, str):
        given = (given,)
    if isinstance(given, Mapping):
        given = [f"{name}={_text(sizes)}" for name, sizes in given.items()]
    if not isinstance(given, Collection):
        raise OptionError(f"{given!r} gives no shapes", where="shapes", hint=_EXAMPLE)
    found: dict[str, str] = {}
    for text in given:
        name, equals, sizes = text.rpartition("=") if isinstance(text, str) else ("", "", "")
        sizes = sizes.strip().replace(",", "x")
        if not name or not equals or not _SIZES.fullmatch(sizes):
            raise OptionError(f"{text!r} is not NAME=SIZES", where="shapes", hint=_EXAMPLE)
        if name in found:
            raise OptionError(f"{name!r} is there twice", where="shapes", hint="Leave one of the two out")
        wrong = [size for size in sizes_of(f"={sizes}")[1] if size is not None and not 0 < size <= _MOST]
        if wrong:
            raise OptionError(f"{text!r} has a size of {wrong[0]}", where="shapes", hint=_EXAMPLE)
        found[name] = sizes
    return tuple(f"{name}={sizes}" for name, sizes in found.items())


def sizes_of(shape: str) -> tuple[str, Sizes]:
    """The name and the sizes of one of those that :func:`parse_shapes` gives."""
    name, _, sizes = shape.rpartition("=")
    return name, tuple(None if size == "*" else int(size) for size in sizes.split("x"))


def _text(sizes: object) -> str:
    if isinstance(sizes, Sequence) and not isinstance(sizes, str):
        return "x".join("*" if size is None else str(plain(size)) for size in sizes)
    return str(plain(sizes))
