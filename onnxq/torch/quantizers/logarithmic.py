"""The logarithmic grid of 8 bits (HiSilicon's GFPQ), with the arithmetic of :mod:`onnxq.grids.logarithmic`.

The gradient passes straight through where values are within the grid, those rounded to 0 included, and stops beyond
the clip value, where the quantized value no longer changes.
"""

from __future__ import annotations

from typing import Any

import torch

from onnxq.grids.logarithmic import HIGHEST, LOWEST, STEPS, TOP
from onnxq.spec import Scheme
from onnxq.torch.quantizers.base import Tensor
from onnxq.torch.quantizers.ema import EMA

__all__ = ["Logarithmic", "logarithmic_grid"]


def logarithmic_grid(x: Tensor, clip: Tensor) -> Tensor:
    """Values on the grid of a clip value, in the type of ``x``."""
    return _on_grid(x, clip)[0]


def _on_grid(x: Tensor, clip: Tensor) -> tuple[Tensor, Tensor]:
    """Values on the grid, and where they are beyond the clip value."""
    wide = x.double()
    n = torch.round(STEPS * torch.log2(clip.double())).clamp(LOWEST, HIGHEST)
    z = n - TOP
    k = torch.round(STEPS * torch.log2(wide.abs())) - z
    above = wide >= torch.exp2(z / STEPS - 1)
    below = wide < -torch.exp2((z + 1) / STEPS - 1)
    sizes = torch.exp2((torch.where(above, k.clamp(0, TOP), k.clamp(1, TOP)) + z) / STEPS)
    result = torch.where(above, sizes, torch.where(below, -sizes, torch.zeros_like(sizes)))
    return result.to(x.dtype), (k > TOP) & (above | below)


class _Logarithmic(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, clip: Tensor) -> Tensor:
        result, beyond = _on_grid(x, clip)
        ctx.save_for_backward(~beyond)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0] * ctx.saved_tensors[0], None


class Logarithmic(EMA):
    """Powers of ``2**(1/16)`` with a sign; the clip value, one of them, follows the observer while training."""

    scheme = Scheme.LOGARITHMIC

    def quantize(self, x: Tensor) -> Tensor:
        """See :meth:`Quantizer.quantize`."""
        self.follow(x)
        return _Logarithmic.apply(x, self.shaped(self.scale, x))  # type: ignore[no-any-return]
