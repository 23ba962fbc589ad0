"""The targets and algorithms that are installed: onnxq's own and those of other packages."""

from __future__ import annotations

import logging
from typing import cast

from onnxq import plugins
from onnxq.algorithms.draft import Algorithm
from onnxq.backend import Backend
from onnxq.errors import OptionError

__all__ = ["backends", "installed_algorithms"]


def backends() -> list[Backend]:
    """All installed backends by name. One that cannot be loaded is left out, with a warning in the log."""
    found = []
    for name in plugins.names("onnxq.backends"):
        try:
            loaded = plugins.find("onnxq.backends", name)
        except OptionError as error:
            logging.getLogger("onnxq").warning("%s", error)
            continue
        backend = getattr(loaded, "BACKEND", loaded)
        if isinstance(backend, Backend):
            found.append(backend)
        else:
            logging.getLogger("onnxq").warning("backend %r offers no BACKEND of type onnxq.Backend", name)
    return found


def installed_algorithms() -> list[Algorithm]:
    """All installed algorithms by name. One that cannot be loaded is left out, with a warning in the log."""
    found = []
    for name in plugins.names("onnxq.algorithms"):
        try:
            loaded = plugins.find("onnxq.algorithms", name)
        except OptionError as error:
            logging.getLogger("onnxq").warning("%s", error)
            continue
        found.append(cast("Algorithm", loaded))
    return found
