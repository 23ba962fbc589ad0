"""Find backends, range methods and algorithms by entry point; built-in ones and those of other packages alike.

A package offers one by a line of its ``pyproject.toml``::

    [project.entry-points."onnxq.ranges"]
    mine = "my_package.my_range"
"""

from __future__ import annotations

import difflib
import logging
from functools import cache
from importlib import metadata
from typing import Any

from onnxq.errors import OnnxqError, OptionError

__all__ = ["OWN", "find", "names", "owner", "refresh"]

OWN = "onnxq"
"""The package whose entry points are built in."""

_log = logging.getLogger("onnxq")

_WORDS = {
    "onnxq.backends": "backend",
    "onnxq.ranges": "range method",
    "onnxq.algorithms": "algorithm",
    "onnxq.runtimes": "runtime",
}


@cache
def _entries(group: str) -> dict[str, metadata.EntryPoint]:
    """Entry points of a group by name; where two packages give one name, onnxq's own comes first, then by package."""
    by_name: dict[str, list[metadata.EntryPoint]] = {}
    for entry in metadata.entry_points(group=group):
        by_name.setdefault(entry.name, []).append(entry)
    found = {}
    for name, entries in by_name.items():
        if len(entries) > 1:  # only then: to learn the package's name, its metadata is read
            entries.sort(key=lambda e: (_owner(e) != OWN, _owner(e), e.value))
            _tell_of_others(group, entries)
        found[name] = entries[0]
    return found


def _tell_of_others(group: str, entries: list[metadata.EntryPoint]) -> None:
    """Warn of what is never found, since the first has its name; a package that is there twice is none of these."""
    used = _owner(entries[0])
    for other in sorted({_owner(entry) for entry in entries} - {used}):
        _log.warning(
            "%s %r of package %r is not used: package %r has one of that name. It needs another name",
            _WORDS.get(group, group), entries[0].name, other, used,
        )  # fmt: skip


@cache
def _load(group: str, name: str) -> Any:
    return _entries(group)[name].load()


def _owner(entry: metadata.EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "an unknown package"


@cache
def owner(group: str, name: str) -> str:
    """The package that an entry point comes from.

    Args:
        group: entry-point group.
        name: one of :func:`names`.
    """
    return _owner(_entries(group)[name])


def names(group: str) -> list[str]:
    """Names that are installed in a group, sorted.

    Args:
        group: entry-point group, e.g. ``"onnxq.ranges"``.
    """
    return sorted(_entries(group))


def find(group: str, name: str) -> Any:
    """The module or object that is registered under a name.

    Args:
        group: entry-point group, e.g. ``"onnxq.ranges"``.
        name: its name there.

    Raises:
        OptionError: nothing has that name (the message lists the nearest and the installed ones), or it is there
            but cannot be imported (the message names the package it comes from).
    """
    word = _WORDS.get(group, group)
    known = names(group)
    if not known:
        raise OptionError(
            f"no {word} is registered", hint="onnxq is not installed properly: run `pip install` on it again"
        )
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
        guess = f"Did you mean {' or '.join(near)}? " if near else ""
        raise OptionError(f"there is no {word} named {name!r}", hint=f"{guess}Installed: {', '.join(known)}")
    try:
        return _load(group, name)
    except OnnxqError:
        raise
    except Exception as error:
        owner = _owner(_entries(group)[name])
        raise OptionError(
            f"{word} {name!r} of package {owner!r} cannot be loaded ({type(error).__name__}: {error})",
            hint="Reinstall or remove that package",
        ) from error


def refresh() -> None:
    """Forget what was found, so that packages installed since are seen."""
    _entries.cache_clear()
    _load.cache_clear()
    owner.cache_clear()
