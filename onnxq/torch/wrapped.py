"""A module inside those that torch puts around it."""

from __future__ import annotations

from typing import TypeVar

import torch

__all__ = ["unwrapped"]

Kind = TypeVar("Kind", bound=torch.nn.Module)


def unwrapped(module: torch.nn.Module, kind: type[Kind]) -> Kind | None:
    """The module of a kind that a module is or wraps, None where there is none.

    ``DistributedDataParallel`` and ``AveragedModel`` have it as ``module``, a compiled module as ``_orig_mod``.
    """
    found: object = module
    while isinstance(found, torch.nn.Module) and not isinstance(found, kind):
        found = getattr(found, "_orig_mod", None) or getattr(found, "module", None)
    return found if isinstance(found, kind) else None
