"""Where torch can compute."""

from __future__ import annotations

import torch

from onnxq.errors import OptionError

__all__ = ["require_device"]


def require_device(name: str) -> None:
    """Refuse a device that is not there.

    Raises:
        OptionError: torch knows none of that name, or cannot use it; those that it can are named.
    """
    try:
        torch.zeros(1, device=name).add(1)
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # torch raises each of them
        found = ["cpu", *(f"cuda:{k}" for k in range(torch.cuda.device_count()))]
        found += ["mps"] if torch.backends.mps.is_available() else []
        what = f"torch cannot compute on {name!r}"
        raise OptionError(what, where="device", hint=f"There is {', '.join(found)}") from error
