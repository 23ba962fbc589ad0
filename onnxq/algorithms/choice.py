"""Which algorithms run, in which order, with which parameters: ``NAME:key=value,key=value``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from onnxq import plugins
from onnxq.algorithms.draft import Draft, FloatDraft
from onnxq.errors import OptionError
from onnxq.suggest import nearest

__all__ = ["Choice", "chosen", "run"]

_GROUP = "onnxq.algorithms"
STAGES = ("float", "numbers")


@dataclass(frozen=True)
class Choice:
    """An algorithm with its parameters.

    Attributes:
        algorithm: the module, see :class:`onnxq.algorithms.draft.Algorithm`.
        parameters: all of them, defaults included.
        text: as the user wrote it.
    """

    algorithm: Any
    parameters: dict[str, Any]
    text: str

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.algorithm.NAME)

    @property
    def stage(self) -> str:
        """``"float"`` or ``"numbers"``."""
        return str(self.algorithm.STAGE)


def chosen(texts: Sequence[str]) -> list[Choice]:
    """Find algorithms by what the user wrote.

    Args:
        texts: ``NAME`` or ``NAME:key=value,key=value``.

    Raises:
        OptionError: there is no such algorithm or parameter, or a value is of the wrong kind.
    """
    return [_parse(text) for text in texts]


def run(choices: Sequence[Choice], draft: FloatDraft | Draft) -> None:
    """Apply the algorithms of the draft's stage, one after the other.

    Args:
        choices: algorithms of both stages.
        draft: changed in place.
    """
    stage = "float" if isinstance(draft, FloatDraft) else "numbers"
    for choice in choices:
        if choice.stage == stage:
            choice.algorithm.apply(draft, **choice.parameters)


def _parse(text: str) -> Choice:
    name, _, rest = text.partition(":")
    algorithm = plugins.find(_GROUP, name.strip().replace("-", "_"))
    if getattr(algorithm, "STAGE", None) not in STAGES or not callable(getattr(algorithm, "apply", None)):
        raise OptionError(
            f"algorithm {name!r} offers no STAGE and apply()", hint="See onnxq.algorithms.draft.Algorithm"
        )
    parameters = dict(algorithm.PARAMETERS)
    for part in filter(None, (p.strip() for p in rest.split(","))):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        key = key.replace("-", "_")
        if not equals or key not in parameters:
            hint = nearest(key, parameters, title="parameters") if parameters else "It has none"
            raise OptionError(f"algorithm {name!r} has no parameter {key!r}", where="algorithm", hint=hint)
        parameters[key] = _value(f"algorithm {name!r}, {key}", value, parameters[key])
    if (check := getattr(algorithm, "check", None)) is not None:
        check(**parameters)
    return Choice(algorithm, parameters, text)


def _value(where: str, text: str, default: object) -> object:
    if isinstance(default, bool):
        words = {
            "true": True,
            "yes": True,
            "on": True,
            "1": True,
            "false": False,
            "no": False,
            "off": False,
            "0": False,
        }
        if text.lower() in words:
            return words[text.lower()]
        raise OptionError(f"{text!r} is neither true nor false", where=where)
    if isinstance(default, int):
        if re.fullmatch(r"[-+]?\d+", text):
            return int(text)
        raise OptionError(f"{text!r} is not a whole number", where=where)
    if isinstance(default, float):
        try:
            return float(text)
        except ValueError:
            raise OptionError(f"{text!r} is not a number", where=where) from None
    return text
