"""What is asked for differently where a pattern matches: `Override`, and the ways to write it."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from onnxq.errors import OptionError
from onnxq.options.one_value import check_bits, check_flag, check_range, once
from onnxq.suggest import nearest

__all__ = ["GivenOverrides", "Override", "parse_overrides"]


@dataclass(frozen=True)
class Override:
    """What is asked for differently where a pattern matches; None leaves the general setting.

    Attributes:
        weight_bits: bits of constant inputs.
        act_bits: bits of activations.
        symmetric: activations are symmetric.
        per_channel: weights have a scale per output channel.
        weight_symmetric: weights are symmetric, else they have zero points.
        range: the range method, e.g. ``"percentile:99.9"``.
        float: stays float (the same as ``exclude``).
    """

    weight_bits: int | None = None
    act_bits: int | None = None
    symmetric: bool | None = None
    per_channel: bool | None = None
    weight_symmetric: bool | None = None
    range: str | None = None
    float: bool = False

    KEYS = ("bits", "weight_bits", "act_bits", "symmetric", "per_channel", "weight_symmetric", "range", "float")

    def __post_init__(self) -> None:
        for name in ("weight_bits", "act_bits"):
            if getattr(self, name) is not None:
                check_bits(f"override {name}", getattr(self, name))
        for name in ("symmetric", "per_channel", "weight_symmetric", "float"):
            check_flag(f"override {name}", getattr(self, name))
        if self.range is not None:
            check_range("override range", self.range)

    @classmethod
    def parse(cls, text: str | Mapping[str, object]) -> Override:
        """Read ``"bits=16,range=minmax"``, ``"float"`` or a mapping with the same keys; ``bits`` sets both widths.

        Raises:
            OptionError: an unknown key or a value of the wrong kind.
        """
        if isinstance(text, str):
            pairs = [part.partition("=") for part in text.replace(";", ",").split(",") if part.strip()]
            once([k.strip() for k, _, _ in pairs], f"override {text!r}")
            items: dict[str, object] = {
                k.strip().replace("-", "_"): _literal(v.strip()) if eq else True for k, eq, v in pairs
            }
        elif isinstance(text, Mapping):
            items = {key: text[raw] for key, raw in once(text, "override").items()}
        else:
            raise OptionError(f"{text!r} is not KEY=VALUE,KEY=VALUE", where="override")
        if not items:
            raise OptionError("says nothing to change", where="override", hint=f"Keys: {', '.join(cls.KEYS)}.")
        for key in items:
            if key not in cls.KEYS:
                raise OptionError(f"unknown key {key!r}", where="override", hint=nearest(key, cls.KEYS, title="keys"))
        if "bits" in items:
            bits = items.pop("bits")
            items = {"weight_bits": bits, "act_bits": bits, **items}
        return cls(**items)  # type: ignore[arg-type]  # checked in __post_init__


def _literal(text: str) -> object:
    if text.lower() in ("true", "yes", "on"):
        return True
    if text.lower() in ("false", "no", "off"):
        return False
    return int(text) if re.fullmatch(r"[-+]?\d+", text) else text


GivenOverride = Override | str | Mapping[str, object]
GivenOverrides = str | Mapping[str, GivenOverride] | Collection[str | tuple[str, GivenOverride]]
"""The forms that `parse_overrides` reads: patterns with their changes, or ``"PATTERN=key=value,..."`` strings."""

_KEY = "|".join(key.replace("_", "[_-]") for key in Override.KEYS)
_OVERRIDE = re.compile(rf"^(?P<pattern>.+?)=(?P<value>(?:float|(?:{_KEY})=[^=]*)(?:,.*)?)$")


def _split_override(text: str) -> tuple[str, str]:
    """``"PATTERN=key=value,..."`` → (pattern, rest); the pattern itself may hold ``=``."""
    if found := _OVERRIDE.match(text):
        return found["pattern"], found["value"]
    pattern, eq, value = text.partition("=")
    if not eq or not pattern:
        raise OptionError(
            f"{text!r} is not PATTERN=KEY=VALUE", where="override", hint="For example 'Conv_0=bits=16,range=minmax'."
        )
    return pattern, value


def parse_overrides(given: object) -> tuple[tuple[str, Override], ...]:
    """Patterns with what is different there, in the order given.

    Args:
        given: as in :data:`GivenOverrides`.

    Raises:
        OptionError: it is something else, or has an unknown key or a wrong value.
    """
    if isinstance(given, str):
        given = (given,)
    pairs = (
        list(given.items()) if isinstance(given, Mapping) else list(given) if isinstance(given, Collection) else [given]
    )
    result = []
    for pair in pairs:
        if isinstance(pair, str):
            pair = _split_override(pair)
        if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not isinstance(pair[0], str):
            raise OptionError(f"{pair!r} is not a pattern with its changes", where="override")
        pattern, change = pair
        result.append((pattern, change if isinstance(change, Override) else Override.parse(change)))
    return tuple(result)
