"""DSQ: rounding with the gradient of a soft staircase.

Gong et al., Differentiable Soft Quantization, 2019, equations 3 to 8: between two steps the staircase is
``tanh(k (u - 1/2)) / tanh(k / 2)``, stretched to the step, with ``alpha`` the share that it misses:
``tanh(k / 2) = 1 - alpha``.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from onnxq.torch.quantizers.ema import EMA

__all__ = ["DSQ"]

Tensor = torch.Tensor
_ALPHA = 0.4


class _Soft(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, zero: Tensor, ends: tuple[int, int], alpha: float) -> Tensor:
        ratio = x / scale
        codes = torch.clamp(torch.round(ratio) + zero, *ends) - zero
        share = ratio - torch.floor(ratio)
        steep = 2 * math.atanh(1 - alpha)
        slope = 0.5 * steep / (1 - alpha) * (1 - torch.tanh(steep * (share - 0.5)).square())
        inside = (ratio >= ends[0] - zero) & (ratio <= ends[1] - zero)
        ctx.save_for_backward(slope * inside)
        return (codes + 0.0) * scale

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return grads[0] * ctx.saved_tensors[0], None, None, None, None


class DSQ(EMA):
    """Hard rounding forward, the soft staircase's slope backward; the range follows its observer while training."""

    def quantize(self, x: Tensor) -> Tensor:
        """See :meth:`Quantizer.quantize`."""
        self.follow(x)
        scale, zero = self.shaped(self.scale, x), self.shaped(self.zero_point, x)
        return _Soft.apply(x, scale, zero, (self.spec.qmin, self.spec.qmax), _ALPHA)  # type: ignore[no-any-return]
