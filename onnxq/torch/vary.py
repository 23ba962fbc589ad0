"""More inputs out of few: pictures are turned, cropped, flipped and coloured, samples are mixed. The float model judges
them all.

A network learns a teacher's function from crops of very few pictures where these vary strongly enough (Asano and Saeed,
The Augmented Image Prior, 2023: crops of 8 % and more of the area, turns, colours, CutMix).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

__all__ = ["vary"]

Tensor = torch.Tensor

_COLOURS = 3
_LEAST_SIDE = 16
_LEAST_AREA = 0.08
"""Smallest crop, as a share of the picture's area."""
_ASPECT = math.log(4 / 3)
"""Largest logarithm of how much wider or higher a crop is than the picture."""
_TURN = math.radians(20)
_GAIN, _SHIFT = 0.3, 0.15
"""Largest logarithm of a colour's gain, and largest shift in parts of the picture's range."""


def vary(
    samples: Sequence[Mapping[str, Tensor]], index: int, share: float, generator: torch.Generator
) -> dict[str, Tensor]:
    """A sample, or with a probability one made from it.

    Inputs of four axes with three colours, (N, 3, H, W) or (N, H, W, 3), are turned, cropped, flipped and coloured;
    where all inputs are float, the sample is mixed with another one of the same shapes: of pictures a rectangle of the
    other takes its place in half of the cases (CutMix, Yun et al., 2019), else both are added up in shares (mixup,
    Zhang et al., 2018).

    Args:
        samples: input name to tensor, each.
        index: which one.
        share: probability of each of the two.
        generator: of what is drawn.
    """
    sample = {name: _seen(x, share, generator) for name, x in samples[index].items()}
    if _uniform(generator) >= share or any(x.dtype != torch.float32 for x in sample.values()):
        return sample
    chosen = samples[int(torch.randint(len(samples), (), generator=generator))]
    if sample.keys() != chosen.keys() or any(x.shape != chosen[name].shape for name, x in sample.items()):
        return sample
    other = {name: _seen(x, share, generator) for name, x in chosen.items()}
    weight, cut = _uniform(generator), _uniform(generator) < 0.5
    return {
        name: _pasted(x, other[name], axes, weight, generator)
        if cut and (axes := _axes(x)) is not None
        else x * weight + other[name] * (1 - weight)
        for name, x in sample.items()
    }


def _axes(x: Tensor) -> tuple[int, int] | None:
    """Axes of rows and columns, where it is a picture."""
    if x.ndim != 4 or x.dtype != torch.float32:
        return None
    if x.shape[1] == _COLOURS and min(x.shape[2:]) >= _LEAST_SIDE:
        return 2, 3
    return (1, 2) if x.shape[3] == _COLOURS and min(x.shape[1:3]) >= _LEAST_SIDE else None


def _seen(x: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """A picture as seen from elsewhere, in other light; anything else as it is."""
    axes = _axes(x)
    if axes is None or _uniform(generator) >= share:
        return x
    if axes == (2, 3):
        return _coloured(_cropped(x, generator), generator)
    return _coloured(_cropped(x.permute(0, 3, 1, 2), generator), generator).permute(0, 2, 3, 1)


def _cropped(x: Tensor, generator: torch.Generator) -> Tensor:
    """A rectangle of any place, size and shape, turned, and flipped in half of the cases; (N, C, H, W)."""
    side = math.sqrt(_LEAST_AREA + (1 - _LEAST_AREA) * _uniform(generator))
    aspect = math.exp(_between(-_ASPECT, _ASPECT, generator) / 2)
    height, width = min(side / aspect, 1.0), min(side * aspect, 1.0)
    turn = _between(-_TURN, _TURN, generator) if _uniform(generator) < 0.5 else 0.0
    down, across = ((1 - part) * _between(-1.0, 1.0, generator) for part in (height, width))
    mirror = -1.0 if _uniform(generator) < 0.5 else 1.0
    ratio = x.shape[2] / x.shape[3]
    cos, sin = math.cos(turn), math.sin(turn)
    rows = [[mirror * width * cos, -height * sin * ratio, across], [mirror * width * sin / ratio, height * cos, down]]
    moved = torch.tensor([rows] * x.shape[0], dtype=x.dtype, device=x.device)
    grid = torch.nn.functional.affine_grid(moved, list(x.shape), align_corners=False)
    return torch.nn.functional.grid_sample(x, grid, padding_mode="reflection", align_corners=False)


def _coloured(x: Tensor, generator: torch.Generator) -> Tensor:
    """Each colour stronger or weaker, and shifted, within the picture's range; (N, C, H, W)."""
    low, high = x.amin(), x.amax()
    gain = torch.exp((torch.rand((1, _COLOURS, 1, 1), generator=generator) * 2 - 1) * _GAIN).to(x.device)
    shift = ((torch.rand((1, _COLOURS, 1, 1), generator=generator) * 2 - 1) * _SHIFT).to(x.device)
    middle = (low + high) / 2
    return ((x - middle) * gain + middle + shift * (high - low)).clamp(low, high)


def _pasted(x: Tensor, other: Tensor, axes: tuple[int, int], weight: float, generator: torch.Generator) -> Tensor:
    """A picture with a rectangle of another one, which has a share of ``1 - weight`` of the area, in its place."""
    mask = torch.ones([1] * x.ndim, dtype=torch.bool, device=x.device)
    for axis in axes:
        size = x.shape[axis]
        length = round(size * math.sqrt(1 - weight))
        first = int(torch.randint(size - length + 1, (), generator=generator))
        at = torch.arange(size, device=x.device)
        inside = ((at >= first) & (at < first + length)).reshape([-1 if k == axis else 1 for k in range(x.ndim)])
        mask = mask & inside
    return torch.where(mask, other, x)


def _between(low: float, high: float, generator: torch.Generator) -> float:
    return low + (high - low) * _uniform(generator)


def _uniform(generator: torch.Generator) -> float:
    return float(torch.rand((), generator=generator))
