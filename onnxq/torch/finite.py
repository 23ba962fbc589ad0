"""What training has left is looked at before it is taken: a NaN would become an integer like any other number."""

from __future__ import annotations

import torch

from onnxq.console.terminal import listed
from onnxq.errors import OptionError

__all__ = ["require_finite", "require_float32"]

_NAMED = 3


def require_finite(module: torch.nn.Module, *, where: str) -> None:
    """Refuse a module whose training has diverged.

    Args:
        module: its parameters are looked at. A constant of it may be infinite, a mask say.
        where: what the error is about.

    Raises:
        OptionError: a parameter holds NaN or infinite numbers; the first of them are named.
    """
    bad = []
    for name, parameter in module.named_parameters():
        finite = parameter.requires_grad or "quantizers" in name.split(".")
        wrong = ~torch.isfinite(parameter) if finite else torch.isnan(parameter)
        if bool(wrong.any()):
            bad.append(repr(name))
    if bad:
        raise OptionError(
            f"{listed(bad, _NAMED)} hold NaN or infinite numbers",
            where=where,
            hint="The training has diverged: go back to an earlier state, and train with a smaller learning rate",
        )


def require_float32(module: torch.nn.Module, *, where: str) -> None:
    """Refuse a module that computes in another type.

    Args:
        module: the user's; its parameters are looked at.
        where: what the error is about.

    Raises:
        OptionError: it has parameters, and none of them is of float32.
    """
    types = {p.dtype for p in module.parameters() if p.is_floating_point()}
    if types and torch.float32 not in types:
        raise OptionError(
            f"its parameters are of {', '.join(sorted(map(str, types)))}, and quantization is trained in float32",
            where=where,
            hint=f"{where.capitalize()} module.float(); in torch.autocast it trains in bfloat16 or float16 as before",
        )
