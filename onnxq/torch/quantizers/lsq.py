"""LSQ and LSQ+: the scale, and on asymmetric grids the zero point, are learned.

Esser et al., Learned Step Size Quantization, 2020, equations 1 to 3 and section 2.2; Bhalgat et al., LSQ+: Improving
low-bit quantization through learnable offsets and better initialization, 2020, equations 3 to 7.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from onnxq.qparams import MIN_SCALE
from onnxq.torch.quantizers.base import Quantizer, scale_gradient

__all__ = ["LSQ", "learned_grid"]

Tensor = torch.Tensor


class _Learned(torch.autograd.Function):
    """``(clip(round(x / s) + z, n, p) - z) s`` with gradients for x, s and z."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, zero: Tensor, low: int, high: int) -> Tensor:
        ratio = x / scale
        whole = torch.round(ratio)
        codes = torch.clamp(whole + zero, low, high) - zero
        if any(ctx.needs_input_grad):
            inside = codes == whole
            slope = torch.where(inside, codes - ratio, codes) if ctx.needs_input_grad[1] else codes
            ctx.save_for_backward(inside, slope, scale)
        codes = codes + 0.0
        return codes * scale

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        inside, slope, scale = ctx.saved_tensors
        along = grad * inside
        for_scale = (grad * slope).sum_to_size(scale.shape) if ctx.needs_input_grad[1] else None
        for_zero = ((along - grad) * scale).sum_to_size(scale.shape) if ctx.needs_input_grad[2] else None
        return along if ctx.needs_input_grad[0] else None, for_scale, for_zero, None, None


class _Whole(torch.autograd.Function):
    """Rounded and within the grid; the gradient passes straight through."""

    @staticmethod
    def forward(ctx: Any, zero: Tensor, low: int, high: int) -> Tensor:
        return torch.clamp(torch.round(zero), low, high)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return grads[0], None, None


def learned_grid(x: Tensor, scale: Tensor, zero: Tensor, low: int, high: int) -> Tensor:
    """Values on a grid, with gradients: ``n - z`` or ``p - z`` for the scale outside, ``-s`` there for the zero point.

    Args:
        x: float32 values.
        scale: broadcasts against them.
        zero: whole numbers of the shape of ``scale``.
        low: the lowest integer of the grid.
        high: the highest.
    """
    return _Learned.apply(x, scale, zero, low, high)  # type: ignore[no-any-return]


class LSQ(Quantizer):
    """A learned scale; a learned zero point too where the grid is asymmetric.

    Gradients of both are multiplied by ``1 / sqrt(N qmax)``, N elements to a scale, of one sample for activations.
    """

    def build(self, channels: int) -> None:
        """See :meth:`Quantizer.build`."""
        shape = (channels,) if self.axis is not None else ()
        self.scale = torch.nn.Parameter(torch.ones(shape), requires_grad=self.learns)
        learn = self.learns and not self.spec.symmetric
        self.zero_point = torch.nn.Parameter(torch.zeros(shape), requires_grad=learn)

    def set_numbers(self, scale: Tensor, zero: Tensor) -> None:
        """See :meth:`Quantizer.set_numbers`."""
        with torch.no_grad():
            self.scale.copy_(scale)
            self.zero_point.copy_(zero)

    def numbers(self) -> tuple[Tensor, Tensor]:
        """See :meth:`Quantizer.numbers`."""
        scale = self.scale.abs().clamp(min=MIN_SCALE)
        if self.spec.power_of_two:
            scale = scale + (torch.exp2(torch.ceil(torch.log2(scale))) - scale).detach()
        return scale, _Whole.apply(self.zero_point, self.spec.qmin, self.spec.qmax)

    def quantize(self, x: Tensor) -> Tensor:
        """See :meth:`Quantizer.quantize`."""
        scale, zero = self.numbers()
        factor = 1.0 / math.sqrt(max(self.elements(x, self.scale.numel()) * self.spec.qmax, 1.0))
        scale, zero = scale_gradient(scale, factor), scale_gradient(zero, factor)
        return learned_grid(x, self.shaped(scale, x), self.shaped(zero, x), self.spec.qmin, self.spec.qmax)
