"""Batch normalizations that have never run in training mode: what they give in evaluation is not what they will give.

Scales are found in evaluation mode. With the mean of 0 and the variance of 1 that a new normalization starts from,
values grow or vanish from layer to layer; in training each layer's are of size 1 again.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

__all__ = ["told_of_untrained"]

_FAR = 100.0
"""How many times too large or too small values are told."""


@contextmanager
def told_of_untrained(module: torch.nn.Module) -> Iterator[None]:
    """Warn, at the end, where values that pass are far from what they will be in training.

    Args:
        module: in evaluation mode.
    """
    sizes: dict[str, list[float]] = {}
    hooks = []
    for name, part in module.named_modules():
        if isinstance(part, _BatchNorm) and _is_new(part):
            found = sizes.setdefault(name, [])
            hooks.append(part.register_forward_pre_hook(lambda _, args, found=found: found.append(_size(args))))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
    means = {name: sum(found) / len(found) for name, found in sizes.items() if any(found)}
    far = {name: size for name, size in means.items() if not 1 / _FAR <= size <= _FAR}
    if far:
        name = min(far, key=lambda n: min(far[n], 1 / far[n]))
        more = f" and {len(far) - 1} more" if len(far) > 1 else ""
        warnings.warn(
            f"onnxq: batch normalization {name!r}{more} has never run in training mode, and what it gives now is "
            f"{far[name]:.0e} times what it gives then: the scales found behind it are as far off. Train the module in "
            "float first, or load its checkpoint before prepare",
            stacklevel=4,
        )


def _is_new(norm: _BatchNorm) -> bool:
    mean, variance = norm.running_mean, norm.running_var
    return mean is not None and variance is not None and not bool(mean.any()) and bool((variance == 1).all())


def _size(args: tuple[Any, ...]) -> float:
    """Root of the mean variance of the channels."""
    x: torch.Tensor = args[0].detach().float()
    return float(x.transpose(0, 1).flatten(1).var(1, correction=0).mean().sqrt())
