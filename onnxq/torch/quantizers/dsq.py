"""DSQ: rounding with the gradient of a soft staircase.

Gong et al., Differentiable Soft Quantization, 2019, equations 3 to 8: between two steps the staircase is
``tanh(k (u - 1/2)) / tanh(k / 2)``, stretched to the step, with ``alpha`` the share that it misses:
``tanh(k / 2) = 1 - alpha``.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from onnxq.spec import QuantSpec
from onnxq.torch.parameters import require
from onnxq.torch.quantizers.ema import EMA

__all__ = ["DSQ"]

Tensor = torch.Tensor


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
    """Hard rounding forward, the soft staircase's slope backward; the range follows its observer while training.

    Args:
        alpha: what the staircase misses of a step, above 0 and below 1: the softer, the nearer to 1.
    """

    def __init__(self, spec: QuantSpec, channels: int, *, alpha: float = 0.4, **given: Any) -> None:
        require("quantizer 'dsq', alpha", alpha, 1e-4, 1 - 1e-4)
        super().__init__(spec, channels, **given)
        self.alpha = alpha

    def quantize(self, x: Tensor) -> Tensor:
        """See :meth:`Quantizer.quantize`."""
        self.follow(x)
        scale, zero = self.shaped(self.scale, x), self.shaped(self.zero_point, x)
        return _Soft.apply(x, scale, zero, (self.spec.qmin, self.spec.qmax), self.alpha)  # type: ignore[no-any-return]
