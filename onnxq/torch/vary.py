"""More inputs out of few: pictures are flipped and cropped, samples are mixed. The float model judges them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

__all__ = ["vary"]

Tensor = torch.Tensor

_COLOURS = 3
_LEAST_SIDE = 16
_LEAST_SHARE = 0.5
"""Smallest side of a crop, as a share of the picture's."""


def vary(
    samples: Sequence[Mapping[str, Tensor]], index: int, share: float, generator: torch.Generator
) -> dict[str, Tensor]:
    """A sample, or with a probability one made from it.

    Inputs of four axes with three colours, (N, 3, H, W) or (N, H, W, 3), are flipped and cropped; where all inputs are
    float, the sample is mixed with another one of the same shapes.

    Args:
        samples: input name to tensor, each.
        index: which one.
        share: probability of each of the two.
        generator: of what is drawn.
    """
    sample = {name: _seen(x, share, generator) for name, x in samples[index].items()}
    if _uniform(generator) >= share or any(x.dtype != torch.float32 for x in sample.values()):
        return sample
    other = samples[int(torch.randint(len(samples), (), generator=generator))]
    if any(x.shape != other[name].shape for name, x in sample.items()):
        return sample
    weight = _uniform(generator)
    return {name: x * weight + other[name] * (1 - weight) for name, x in sample.items()}


def _seen(x: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """A picture flipped and cropped; anything else as it is."""
    if x.ndim != 4 or x.dtype != torch.float32 or _uniform(generator) >= share:
        return x
    if x.shape[1] == _COLOURS and min(x.shape[2:]) >= _LEAST_SIDE:
        return _cropped(x, generator)
    if x.shape[3] == _COLOURS and min(x.shape[1:3]) >= _LEAST_SIDE:
        return _cropped(x.permute(0, 3, 1, 2), generator).permute(0, 2, 3, 1)
    return x


def _cropped(x: Tensor, generator: torch.Generator) -> Tensor:
    size = x.shape[2:]
    share = _LEAST_SHARE + (1 - _LEAST_SHARE) * _uniform(generator)
    height, width = (max(round(side * share), _LEAST_SIDE) for side in size)
    top = int(torch.randint(size[0] - height + 1, (), generator=generator))
    left = int(torch.randint(size[1] - width + 1, (), generator=generator))
    part = x[:, :, top : top + height, left : left + width]
    part = torch.nn.functional.interpolate(part, size=tuple(size), mode="bilinear", align_corners=False)
    return part.flip(3) if _uniform(generator) < 0.5 else part


def _uniform(generator: torch.Generator) -> float:
    return float(torch.rand((), generator=generator))
