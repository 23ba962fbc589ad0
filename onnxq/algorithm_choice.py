"""Which algorithms run, in which order, with which parameters: ``NAME:key=value,key=value``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from onnxq import plugins
from onnxq.algorithm import Algorithm, Draft, FloatDraft
from onnxq.console.deadline import TimeIsUpError
from onnxq.errors import OnnxqError, OptionError
from onnxq.numbers import fit_biases
from onnxq.options.one_value import once
from onnxq.plugins import OWN
from onnxq.process.one_thread import one_blas_thread
from onnxq.suggest import nearest

__all__ = ["Choice", "algorithm_named", "chosen", "require_a_plan", "run", "whole_model"]

_GROUP = "onnxq.algorithms"
STAGES = ("float", "options", "numbers")
WHOLE = "model"
"""Stage of an algorithm that is a pipeline of its own, from the model to the file."""
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
"""How a parameter may be switched on and off."""


@dataclass(frozen=True)
class Choice:
    """An algorithm with its parameters.

    Attributes:
        algorithm: the module, see :class:`onnxq.algorithm.Algorithm`.
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
        """``"float"``, ``"options"``, ``"numbers"`` or ``"model"``."""
        return str(self.algorithm.STAGE)

    @property
    def called(self) -> str:
        """How a pipeline of its own is called in Python."""
        own = getattr(self.algorithm, "CALLED", None)
        return str(own) if own else f"from {self.algorithm.__name__} import rewrite"

    @property
    def quick(self) -> bool:
        """Whether it costs so little that it runs again each time the plan is tried, not only on the last one."""
        quick = getattr(self.algorithm, "quick", None)
        return bool(quick(**self.parameters)) if quick is not None else False


def chosen(texts: Sequence[str]) -> list[Choice]:
    """Find algorithms by what the user wrote.

    Args:
        texts: ``NAME`` or ``NAME:key=value,key=value``.

    Raises:
        OptionError: there is no such algorithm or parameter, or a value is of the wrong kind.
    """
    choices = [_parse(text) for text in texts]
    for choice in choices:
        if choice.stage == WHOLE:
            raise OptionError(
                f"algorithm {choice.name!r} is a pipeline of its own: 'onnxq quantize' runs it, alone, for one target "
                "and without --max-drop",
                where="algorithm",
                hint=f"In Python: {choice.called}",
            )
    return choices


def whole_model(texts: Sequence[str]) -> Choice | None:
    """The algorithm that is a pipeline of its own, if it is the one asked for.

    Args:
        texts: ``NAME`` or ``NAME:key=value,key=value``.

    Raises:
        OptionError: there is no such algorithm or parameter, or it was asked for together with others.
    """
    if len(texts) == 1:
        choice = _parse(texts[0])
        return choice if choice.stage == WHOLE else None
    chosen(texts)
    return None


def require_a_plan(texts: Sequence[str]) -> None:
    """Refuse an algorithm that has no plan.

    Raises:
        OptionError: it decides while it works, or there is no such algorithm.
    """
    whole = whole_model(texts)
    if whole is not None:
        raise OptionError(
            f"there is no plan of {whole.name!r}: it is a pipeline of its own, which decides while it works",
            where="algorithm",
            hint=f"'onnxq quantize MODEL --algorithm {whole.text} -o OUT.onnx' makes the result, and lists what is "
            f"quantized and what stays float. In Python: {whole.called}",
        )


def run(choices: Sequence[Choice], draft: FloatDraft | Draft) -> None:
    """Apply the algorithms of the draft's stages, one after the other.

    Args:
        choices: algorithms of all stages.
        draft: changed in place; a float draft by the float stage, then by the options stage.
    """
    stages = ("float", "options") if isinstance(draft, FloatDraft) else ("numbers",)
    with one_blas_thread():
        for stage in stages:
            for choice in choices:
                if choice.stage == stage:
                    _apply(choice, draft)


def _apply(choice: Choice, draft: FloatDraft | Draft) -> None:
    """Apply an algorithm; biases follow the scales that it has left.

    Args:
        choice: the algorithm.
        draft: changed in place.

    Raises:
        OptionError: the code of another package failed.
    """
    package = plugins.owner(_GROUP, choice.name)
    try:
        choice.algorithm.apply(draft, **choice.parameters)
        if package != OWN and isinstance(draft, Draft):
            _require_sound(draft, f"algorithm {choice.name!r} of package {package!r}")
            fit_biases(draft.model, draft.plan, draft.numbers)
    except (OnnxqError, TimeIsUpError):
        raise
    except Exception as error:
        if package == OWN:
            raise
        raise OptionError(
            f"algorithm {choice.name!r} of package {package!r} failed ({type(error).__name__}: {error})",
            where="algorithm",
            hint="Leave it out, or report it to the makers of that package",
        ) from error


def _require_sound(draft: Draft, who: str) -> None:
    """Refuse scales that no runtime can compute with.

    Raises:
        OptionError: one is zero, negative, NaN or infinite.
    """
    for name, numbers in draft.numbers.items():
        scale = np.asarray(numbers.scale)
        if not (np.isfinite(scale).all() and (scale > 0).all()):
            raise OptionError(
                f"{who} left a scale that is not finite and greater than 0",
                where=f"tensor {name!r}",
                hint="Leave the algorithm out, or report it to the makers of that package",
            )


def algorithm_named(name: str) -> Algorithm:
    """An algorithm by its name.

    Raises:
        OptionError: there is none of that name, or it is not made as :class:`onnxq.algorithm.Algorithm` says.
    """
    found = plugins.find(_GROUP, name)
    stage = getattr(found, "STAGE", None)
    entry = "rewrite" if stage == WHOLE else "apply"
    lacking = [key for key in ("NAME", "TITLE", "STAGE", "PARAMETERS") if not hasattr(found, key)]
    lacking += [] if callable(getattr(found, entry, None)) else [f"{entry}()"]
    why = f"offers no {', '.join(lacking)}" if lacking else ""
    if not lacking and stage not in (*STAGES, WHOLE):
        why = f"has the STAGE {stage!r}, not one of {', '.join(map(repr, (*STAGES, WHOLE)))}"
    elif not lacking and name != found.NAME:
        why = f"calls itself {found.NAME!r}: the name of its entry point and NAME have to be the same"
    if why:
        package = plugins.owner(_GROUP, name)
        hint = "See onnxq.algorithm.Algorithm"
        raise OptionError(f"algorithm {name!r} of package {package!r} {why}", hint=hint)
    return cast("Algorithm", found)


def _parse(text: str) -> Choice:
    name, _, rest = text.partition(":")
    algorithm = algorithm_named(name.strip().replace("-", "_"))
    parameters = dict(algorithm.PARAMETERS)
    parts = [part for part in (p.strip() for p in rest.split(",")) if part]
    once([part.partition("=")[0].strip() for part in parts], f"algorithm {text!r}")
    for part in parts:
        key, equals, value = (piece.strip() for piece in part.partition("="))
        key = key.replace("-", "_")
        if not equals or key not in parameters:
            known = f"{nearest(key, parameters, title='parameters')} 'onnxq algorithms {algorithm.NAME}' explains them"
            hint = known if parameters else "It has none"
            raise OptionError(f"it has no parameter {key!r}", where=f"algorithm {name!r}", hint=hint)
        parameters[key] = _value(f"algorithm {name!r}, {key}", value, parameters[key])
    if (check := getattr(algorithm, "check", None)) is not None:
        check(**parameters)
    return Choice(algorithm, parameters, text)


def _value(where: str, text: str, default: object) -> object:
    if isinstance(default, bool):
        if text.lower() in (*_TRUE, *_FALSE):
            return text.lower() in _TRUE
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
