"""The same work for several targets: what some of them refuse is told of all of them at once, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from onnxq.backend_choice import require_name
from onnxq.errors import BackendError, OnnxqError, OptionError

__all__ = ["for_each_target", "names_of"]

Work = TypeVar("Work")
Result = TypeVar("Result")


def names_of(backends: Sequence[str]) -> list[str]:
    """Names of targets, each once, in the order given.

    Args:
        backends: names, or a single one.

    Raises:
        OptionError: there is none, or one is no name.
    """
    given: Iterable[Any] = [backends] if isinstance(backends, str) or not isinstance(backends, Iterable) else backends
    names = list(dict.fromkeys(given))
    if not names:
        raise OptionError("no target was given", where="backends", hint="Name at least one, see onnxq.backends()")
    for name in names:
        require_name(name)
    return names


def for_each_target(names: Iterable[str], works: Iterable[Work], do: Callable[[Work], Result]) -> list[Result]:
    """Do something for each target.

    Args:
        names: of the targets.
        works: what is done, one for each target.
        do: may raise an error.

    Returns:
        The results, in that order.

    Raises:
        OnnxqError: of one target alone, or the same of all of them: as it is; else one that names every target with
            what it refuses, and says with which targets it would go.
    """
    names, works = list(names), list(works)
    if len(names) == 1:
        return [do(works[0])]
    results: list[Result] = []
    refused: dict[str, list[str]] = {}
    errors: list[OnnxqError] = []
    for name, work in zip(names, works, strict=True):
        found = _tried(do, work)
        if isinstance(found, OnnxqError):
            refused.setdefault(str(found), []).append(name)
            errors.append(found)
        else:
            results.append(found)
    if not errors:
        return results
    if len(refused) == 1 and len(errors) == len(names):
        raise errors[0]
    refusing = {name for group in refused.values() for name in group}
    others = " ".join(f"--backend {name}" for name in names if name not in refusing)
    kinds = {type(error) for error in errors}
    kind = kinds.pop() if len(kinds) == 1 else BackendError
    raise kind(
        "; ".join(f"{', '.join(group)}: {text}" for text, group in refused.items()),
        where=f"{len(errors)} of {len(names)} targets",
        hint="Nothing was written" + (f"; the others are made with {others}" if others else ""),
    ) from errors[0]


def _tried(do: Callable[[Work], Result], work: Work) -> Result | OnnxqError:
    try:
        return do(work)
    except OnnxqError as error:
        return error
