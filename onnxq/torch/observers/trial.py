"""How far values lie from the grids of ranges that are tried on them, on the device where the values are.

Rows of up to :data:`LOT` values are taken whole. Of a longer row the rounding is judged by so many values, evenly drawn
and the same ones at each call, and what lies beyond the grid by a histogram of all values; the range so chosen has an
error at most 3 % above the least (0.1 dB), 10 % where all but one value in fifty are zero.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from onnxq.ranged import from_range
from onnxq.spec import PerChannel, QuantSpec
from onnxq.torch.observers.base import Ends, rows

__all__ = ["LOT", "Trial"]

Tensor = torch.Tensor

LOT = 1 << 13
_BINS = 1 << 11
_LEAST = 1e-37
"""Width of a bin: a normal float32 number."""
_AT_ONCE = {"cpu": 1 << 17}
"""Numbers in memory at once: what a core's cache holds; on other devices ``1 << 23``."""


class Trial:
    """The values of a batch, to try ranges on.

    Args:
        x: float32, finite.
        spec: of the grid, uniform.
    """

    def __init__(self, x: Tensor, spec: QuantSpec) -> None:
        values = rows(x, spec)
        self.spec = replace(spec, granularity=PerChannel(0))
        self.length = values.shape[1]
        self.histogram: tuple[Tensor, Tensor] | None = None
        if self.length > LOT:
            self.histogram = _histogram(values)
            values = values.index_select(1, _drawn(self.length, values.device))
        self.values = values

    def errors(self, low: Ends, high: Ends, power: float = 2.0) -> Ends:
        """Sum of ``|quantized - x| ** power`` of each row.

        Args:
            low: (ranges, channels).
            high: (ranges, channels).
            power: of the error.

        Returns:
            (ranges, channels), float64.
        """
        qp = from_range(low, high, self.spec)
        first, last = (np.asarray(end - qp.zero_point, np.float32) for end in (self.spec.qmin, self.spec.qmax))
        device, power_of_scale = self.values.device, np.power(qp.scale.astype(np.float64), power)
        numbers = (qp.scale, first, last)
        scale, low_code, high_code = (torch.from_numpy(np.array(a))[..., None].to(device) for a in numbers)
        lot = max(_AT_ONCE.get(device.type, 1 << 23) // max(self.values.numel(), 1), 1)
        parts = [
            self._errors(scale[k : k + lot], low_code[k : k + lot], high_code[k : k + lot], power)
            for k in range(0, len(scale), lot)
        ]
        found = torch.cat(parts).cpu().numpy().astype(np.float64)
        found *= self.length / self.values.shape[1] * power_of_scale
        if self.histogram is not None:
            found += self._beyond(*self.histogram, scale * low_code, scale * high_code, power).cpu().numpy()
        return found

    def best(self, low: Ends, high: Ends, power: float = 2.0) -> tuple[Ends, Ends]:
        """Of the ranges the one of the least error, row by row; the first of several.

        Args:
            low: (ranges, channels).
            high: (ranges, channels).
            power: of the error.

        Returns:
            Both ends, (channels,).
        """
        at = np.argmin(self.errors(low, high, power), axis=0)[None]
        return np.take_along_axis(low, at, 0)[0], np.take_along_axis(high, at, 0)[0]

    def _errors(self, scale: Tensor, first: Tensor, last: Tensor, power: float) -> Tensor:
        """Of the lot, in units of the scale."""
        ratio = self.values / scale
        if self.histogram is None:
            gap = torch.round(ratio).clamp_(first, last).sub_(ratio)
        else:
            ratio = torch.clamp(ratio, first, last)
            gap = torch.round(ratio).sub_(ratio)
        return (gap.square_() if power == 2 else gap.abs_().pow_(power)).sum(-1)

    def _beyond(self, centers: Tensor, counts: Tensor, low: Tensor, high: Tensor, power: float) -> Tensor:
        """Of all values of a long row, what lies outside the grid."""
        gap = torch.clamp(centers, low, high).sub_(centers).abs_().double()
        return (gap.pow_(power) * counts).sum(-1)


def _drawn(length: int, device: torch.device) -> Tensor:
    """Which values are looked at: multiples of the golden ratio lie evenly, and meet no pattern of the layout."""
    place = np.arange(1, LOT + 1, dtype=np.float64) * ((np.sqrt(5) - 1) / 2)
    return torch.from_numpy((np.modf(place)[0] * length).astype(np.int64)).to(device)


def _histogram(values: Tensor) -> tuple[Tensor, Tensor]:
    """Centers of the bins of each row, and how many values are in each: (channels, bins)."""
    low, high = values.amin(1, keepdim=True), values.amax(1, keepdim=True)
    width = ((high - low) / _BINS).clamp(min=_LEAST)
    place = (values - low).div_(width).to(torch.int32)
    channels, bins = len(values), _BINS + 1  # the largest value has one of its own
    place += torch.arange(channels, dtype=torch.int32, device=values.device)[:, None] * bins
    counts = torch.bincount(place.reshape(-1), minlength=channels * bins).reshape(channels, bins)
    middle = torch.arange(bins, dtype=torch.float32, device=values.device) + 0.5
    return torch.minimum(low + width * middle, high), counts
