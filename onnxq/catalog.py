"""The targets that are installed: onnxq's own and those of other packages."""

from __future__ import annotations

import logging

from onnxq import plugins
from onnxq.backend import Backend
from onnxq.errors import OptionError

__all__ = ["backends"]


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
