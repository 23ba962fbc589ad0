"""The targets and algorithms that are installed: onnxq's own and those of other packages."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from onnxq import plugins
from onnxq.algorithm import Algorithm
from onnxq.algorithm_choice import algorithm_named
from onnxq.backend import Backend
from onnxq.backend_choice import backend_named
from onnxq.errors import OptionError

__all__ = ["backends", "installed_algorithms"]

Found = TypeVar("Found")


def backends() -> list[Backend]:
    """All installed backends by name. One that cannot be loaded is left out, with a warning in the log."""
    return _sound("onnxq.backends", backend_named)


def installed_algorithms() -> list[Algorithm]:
    """All installed algorithms by name. One that cannot be loaded is left out, with a warning in the log."""
    return _sound("onnxq.algorithms", algorithm_named)


def _sound(group: str, named: Callable[[str], Found]) -> list[Found]:
    tried = (_tried(named, name) for name in plugins.names(group))
    return [found for found in tried if found is not None]


def _tried(named: Callable[[str], Found], name: str) -> Found | None:
    try:
        return named(name)
    except OptionError as error:
        logging.getLogger("onnxq").warning("%s", error)
        return None
