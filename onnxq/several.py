"""The same work for several targets: what some of them refuse is told of all of them at once, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from onnxq.backend_choice import require_name
from onnxq.console.terminal import listed
from onnxq.errors import BackendError, OnnxqError, OptionError, TargetsError

__all__ = ["for_each_target", "for_those_that_take_it", "names_of", "require_all"]

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


def for_each_target(names: Sequence[str], do: Callable[[str], Result]) -> dict[str, Result]:
    """Do something for each target that has to go with all of them.

    Args:
        names: of the targets.
        do: may raise an error.

    Returns:
        The results by target, in that order.

    Raises:
        OnnxqError: of one target alone, or the same of all of them: as it is; else one that names every target with
            what it refuses, and says with which targets it would go.
    """
    made, refused = for_those_that_take_it(names, do)
    if not refused:
        return made
    others = " ".join(f"--backend {name}" for name in made)
    hint = f"Nothing was written; the others are made with {others}"
    raise _all_of(refused, len(names), hint) from next(iter(refused.values()))


def for_those_that_take_it(
    names: Sequence[str], do: Callable[[str], Result], refused: Mapping[str, OnnxqError] | None = None
) -> tuple[dict[str, Result], dict[str, OnnxqError]]:
    """Do something for each target.

    Args:
        names: of the targets.
        do: may raise an error.
        refused: the errors of further targets, which have fallen out before.

    Returns:
        The results by target, and the errors of all that have none.

    Raises:
        OnnxqError: there is no result; see :func:`for_each_target`.
    """
    refused = dict(refused or {})
    number = len(names) + len(refused)
    if number == 1:
        return {names[0]: do(names[0])}, {}
    made: dict[str, Result] = {}
    for name in names:
        found = _tried(do, name)
        if isinstance(found, OnnxqError):
            refused[name] = found
        else:
            made[name] = found
    if made or not refused:
        return made, refused
    first = next(iter(refused.values()))
    if len(set(map(str, refused.values()))) == 1:
        raise first
    raise _all_of(refused, number, "Nothing was written") from first


def _tried(do: Callable[[str], Result], name: str) -> Result | OnnxqError:
    try:
        return do(name)
    except OnnxqError as error:
        return error


def require_all(made: Mapping[str, Any], refused: Mapping[str, OnnxqError], *, written: bool) -> None:
    """Say what some targets refused, once the others are made.

    Args:
        made: what these gave.
        refused: the errors, by target.
        written: whether files were asked for.

    Raises:
        TargetsError: there are any.
    """
    if refused:
        others = listed(list(made), len(made))
        hint = f"{'Written' if written else 'Made'} without {'it' if len(refused) == 1 else 'them'}: {others}"
        what, where = _told(refused, len(made) + len(refused))
        raise TargetsError(what, where=where, hint=hint, made=made, refused=refused) from next(iter(refused.values()))


def _all_of(refused: Mapping[str, OnnxqError], number: int, hint: str) -> OnnxqError:
    """One error for several; of their kind, where they are of one."""
    kinds = {type(error) for error in refused.values()}
    kind = kinds.pop() if len(kinds) == 1 else BackendError
    what, where = _told(refused, number)
    return kind(what, where=where, hint=hint)


def _told(refused: Mapping[str, OnnxqError], number: int) -> tuple[str, str]:
    """What is refused, each reason once after its targets, and by how many of how many."""
    names: dict[str, list[str]] = {}
    for name, error in refused.items():
        names.setdefault(str(error), []).append(name)
    text = "; ".join(f"{', '.join(group)}: {text}" for text, group in names.items())
    return text, f"{len(refused)} of {number} targets"
