"""PACT: the level at which activations are clipped is learned, and the grid follows it.

Choi et al., PACT: Parameterized Clipping Activation for Quantized Neural Networks, 2018, equations 1 to 3. Where values
are negative too, a lower level is learned beside it, or the same level with its sign changed on a symmetric grid.
"""

from __future__ import annotations

from typing import Any

import torch

from onnxq.errors import OptionError
from onnxq.ranged import MIN_SCALE
from onnxq.torch.quantizers.base import Quantizer

__all__ = ["PACT"]

Tensor = torch.Tensor


class _Clipped(torch.autograd.Function):
    """Values on the grid between two levels; the gradient goes to x inside, and to the level outside."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, lower: Tensor, upper: Tensor, scale: Tensor, zero: Tensor, ends: tuple[int, int]
    ) -> Tensor:
        below, above = x <= lower, x >= upper
        ctx.save_for_backward(below, above)
        codes = torch.clamp(torch.round(x / scale) + zero, *ends) - zero
        return (codes + 0.0) * scale

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        below, above = ctx.saved_tensors
        inside = grad * ~(below | above)
        return inside, (grad * below).sum(), (grad * above).sum(), None, None, None


class PACT(Quantizer):
    """Learned clipping levels of an activation: ``upper``, and ``lower`` where the grid is not symmetric."""

    def build(self, channels: int) -> None:
        """See :meth:`Quantizer.build`."""
        if self.weight or self.axis is not None:
            raise OptionError("PACT is for activations with one scale", where="prepare", hint="Weights take 'lsq'")
        self.upper = torch.nn.Parameter(torch.ones(()), requires_grad=self.learns)
        self.lower = torch.nn.Parameter(torch.zeros(()), requires_grad=self.learns and not self.spec.symmetric)

    def set_numbers(self, scale: Tensor, zero: Tensor) -> None:
        """See :meth:`Quantizer.set_numbers`."""
        with torch.no_grad():
            self.upper.copy_((self.spec.qmax - zero) * scale)
            self.lower.copy_((self.spec.qmin - zero) * scale)

    def numbers(self) -> tuple[Tensor, Tensor]:
        """See :meth:`Quantizer.numbers`."""
        low, high = self.spec.qmin, self.spec.qmax
        with torch.no_grad():
            if self.spec.symmetric:
                middle = 0 if self.spec.signed else 1 << (self.spec.bits - 1)
                scale = self._allowed(self.upper.abs() / (high - middle))
                return scale, torch.full_like(scale, middle)
            upper, lower = self.upper.clamp(min=0.0), self.lower.clamp(max=0.0)
            scale = self._allowed((upper - lower) / (high - low))
            return scale, torch.clamp(torch.round(low - lower / scale), low, high)

    def quantize(self, x: Tensor) -> Tensor:
        """See :meth:`Quantizer.quantize`."""
        scale, zero = self.numbers()
        ends = (self.spec.qmin, self.spec.qmax)
        upper: Tensor = self.upper
        lower = -upper if self.spec.symmetric else self.lower
        if self.spec.power_of_two:  # what is clipped lies beyond the grid, whose scale may be wider than the levels'
            upper = upper + ((ends[1] - zero) * scale - upper).detach()
            lower = lower + ((ends[0] - zero) * scale - lower).detach()
        return _Clipped.apply(x, lower, upper, scale, zero, ends)  # type: ignore[no-any-return]

    def _allowed(self, scale: Tensor) -> Tensor:
        """A scale that the grid may have: the next power of two where it must be one."""
        scale = scale.clamp(min=MIN_SCALE)
        return torch.exp2(torch.ceil(torch.log2(scale))) if self.spec.power_of_two else scale
