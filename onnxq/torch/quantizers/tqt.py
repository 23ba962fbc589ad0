"""TQT: power-of-two scales whose exponent is learned.

Jain et al., Trained Quantization Thresholds for Accurate and Efficient Fixed-Point Inference of Deep Neural Networks,
2020, equations 3 to 8: with ``s = 2^ceil(t)``, the gradient for ``t`` is ``s ln 2`` times that for ``s``. Here ``t`` is
the logarithm of the scale, theirs that of the threshold: they differ by a constant.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from onnxq.torch.quantizers.base import Quantizer
from onnxq.torch.quantizers.lsq import learned_grid

__all__ = ["TQT"]

Tensor = torch.Tensor


class _PowerOfTwo(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, exponent: Tensor) -> Tensor:
        scale: Tensor = torch.exp2(torch.ceil(exponent))
        ctx.save_for_backward(scale)
        return scale

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        scale: Tensor = ctx.saved_tensors[0]
        return grads[0] * scale * math.log(2.0)


class TQT(Quantizer):
    """A learned exponent of the scale."""

    zero_point: Tensor

    def build(self, channels: int) -> None:
        """See :meth:`Quantizer.build`."""
        shape = (channels,) if self.axis is not None else ()
        self.exponent = torch.nn.Parameter(torch.zeros(shape), requires_grad=self.learns)
        self.register_buffer("zero_point", torch.zeros(shape))

    def set_numbers(self, scale: Tensor, zero: Tensor) -> None:
        """See :meth:`Quantizer.set_numbers`; the exponent starts in the middle between two powers of two."""
        with torch.no_grad():
            self.exponent.copy_(torch.round(torch.log2(scale)) - 0.5 if self.spec.power_of_two else torch.log2(scale))
            self.zero_point.copy_(zero)

    def numbers(self) -> tuple[Tensor, Tensor]:
        """See :meth:`Quantizer.numbers`."""
        return _PowerOfTwo.apply(self.exponent), self.zero_point

    def quantize(self, x: Tensor) -> Tensor:
        """See :meth:`Quantizer.quantize`."""
        scale, zero = self.numbers()
        return learned_grid(x, self.shaped(scale, x), self.shaped(zero, x), self.spec.qmin, self.spec.qmax)
