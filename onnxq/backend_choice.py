"""Which target a name means."""

from __future__ import annotations

from typing import Any

from onnxq import plugins
from onnxq.backend import Backend
from onnxq.errors import OptionError

__all__ = ["backend_named", "require_name"]


def backend_named(name: str) -> Backend:
    """A target by its name.

    Raises:
        OptionError: there is none of that name, or it is no name.
    """
    require_name(name)
    found = plugins.find("onnxq.backends", name)
    backend = getattr(found, "BACKEND", found)
    if not isinstance(backend, Backend):
        raise OptionError(f"backend {name!r} offers no BACKEND of type onnxq.Backend")
    if backend.name != name:
        raise OptionError(
            f"backend {name!r} of package {plugins.owner('onnxq.backends', name)!r} calls itself {backend.name!r}",
            hint="The name of its entry point and BACKEND.name have to be the same",
        )
    return backend


def require_name(name: Any) -> None:
    """Refuse what is given in place of a target's name, the target itself too.

    Raises:
        OptionError: it is no name.
    """
    if not isinstance(name, str):
        kind = f"the target {name.name!r} itself" if isinstance(name, Backend) else f"an object of {type(name)}"
        raise OptionError(f"{kind} is not a name", where="backend", hint="Give a target's name, see onnxq.backends()")
