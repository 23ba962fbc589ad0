"""LSQ and LSQ+: the scale, and on asymmetric grids an offset, are learned.

Esser et al., Learned Step Size Quantization, 2020, equations 1 to 3 and section 2.2; Bhalgat et al., LSQ+: Improving
low-bit quantization through learnable offsets and better initialization, 2020, equations 3 to 7.

The offset is the paper's ``beta``: the real number at the lowest integer, so that it is learned in the units of the
values and not of the scale. Integer grids need a whole zero point, ``round(qmin - beta / s)``: computed with it is what
is written, and gradients pass straight through the rounding.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from onnxq.ranged import MIN_SCALE
from onnxq.spec import QuantSpec
from onnxq.torch.quantizers.base import Quantizer

__all__ = ["LSQ", "learned_grid"]

Tensor = torch.Tensor

_LEAST = 0.05
"""Share of the scale in the beginning that a learned one does not fall below."""


class _Learned(torch.autograd.Function):
    """``(clip(round(x / s) + z, n, p) - z) s`` with gradients for x, s and z.

    Passes over memory are what it costs: few temporaries, changed in place, and numbers for ends where one pair serves
    for all channels, for which torch has the faster kernels.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, zero: Tensor, low: int, high: int) -> Tensor:
        ratio = x / scale
        ends = _ends(zero, low, high)
        if any(ctx.needs_input_grad):
            learned = ctx.needs_input_grad[1] or ctx.needs_input_grad[2]
            # a scale that follows the values is overwritten before the next call of the same quantizer
            ctx.save_for_backward(ratio, scale if learned else None)
            ctx.ends = ends
            codes = torch.round(ratio)
        else:
            codes = ratio.round_()
        return codes.clamp_(*ends).add_(0.0).mul_(scale)  # -0.0 has no integer

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        ratio, scale = ctx.saved_tensors
        low, high = ctx.ends
        codes = torch.round(ratio)
        if isinstance(low, float):
            along = torch.ops.aten.hardtanh_backward(grad, codes, low - 0.5, high + 0.5)
        else:
            along = torch.where((codes >= low) & (codes <= high), grad, 0.0)
        for_scale = for_zero = None
        if scale is not None:
            twice = torch.is_grad_enabled()  # gradients of these gradients read what is in memory now
            codes = codes.clamp(low, high) if twice else codes.clamp_(low, high)
            work = ratio.clamp(low - 1.0, high + 1.0)  # of infinite values too
            if ctx.needs_input_grad[1]:
                for_scale = torch.sub(codes, work, out=work).mul_(along).sum_to_size(scale.shape)
            beyond = grad - along if twice else torch.sub(grad, along, out=work)
            if ctx.needs_input_grad[2]:
                for_zero = -beyond.sum_to_size(scale.shape) * scale
            if for_scale is not None:
                for_scale = for_scale + beyond.mul_(codes).sum_to_size(scale.shape)
        return along if ctx.needs_input_grad[0] else None, for_scale, for_zero, None, None


def _ends(zero: Tensor, low: int, high: int) -> tuple[float, float] | tuple[Tensor, Tensor]:
    """Ends of the grid less the zero point: numbers where they are alike everywhere, and looking does not wait."""
    if zero.device.type == "cpu" and (zero.numel() == 1 or not zero.any()):
        middle = zero.item() if zero.numel() == 1 else 0.0
        return low - middle, high - middle
    return low - zero, high - zero


class _Scale(torch.autograd.Function):
    """Not below a floor; below it the gradient passes only where it leads back, and times a factor everywhere."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, floor: Tensor, factor: float) -> Tensor:
        ctx.save_for_backward(x, floor)
        ctx.factor = factor
        return torch.maximum(x, floor)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (grad,), (x, floor) = grads, ctx.saved_tensors
        return torch.where((x < floor) & (grad > 0), 0.0, grad) * ctx.factor, None, None


class _ZeroPoint(torch.autograd.Function):
    """``low - offset / scale``, rounded and within the grid.

    The gradient passes straight through; outside to the offset alone, only where it leads back. That of the offset is
    times a factor.
    """

    @staticmethod
    def forward(ctx: Any, offset: Tensor, scale: Tensor, low: int, high: int, factor: float) -> Tensor:
        ctx.save_for_backward(offset, scale)
        ctx.given = low, high, factor
        return torch.round(low - offset / scale).clamp_(low, high)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        (grad,), (offset, scale), (low, high, factor) = grads, ctx.saved_tensors, ctx.given
        ratio = offset / scale
        zero = low - ratio
        passed = torch.where(((zero < low) & (grad > 0)) | ((zero > high) & (grad < 0)), 0.0, grad) / scale
        for_scale = torch.where((zero < low) | (zero > high), 0.0, passed * ratio)  # the ratio has no bounds there
        return -passed * factor, for_scale, None, None, None


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
    """A learned scale; a learned offset too where the grid is asymmetric.

    Gradients of both are multiplied by ``1 / sqrt(N qmax)``, N elements to a scale, of one sample for activations. The
    scale stays above a twentieth of the one it began with: a step of Adam may be larger than the whole scale.

    Args:
        grad_scaling: False leaves these gradients as they are.

    Attributes:
        scale: learned.
        offset: the real number at the lowest integer, learned; of asymmetric grids.
        zero_point: of symmetric grids.
        floor: what the scale does not fall below.
    """

    floor: Tensor

    def __init__(self, spec: QuantSpec, channels: int, *, grad_scaling: bool = True, **given: Any) -> None:
        super().__init__(spec, channels, **given)
        self.grad_scaling = grad_scaling

    def build(self, channels: int) -> None:
        """See :meth:`Quantizer.build`."""
        shape = (channels,) if self.axis is not None else ()
        self.scale = torch.nn.Parameter(torch.ones(shape), requires_grad=self.learns)
        self.register_buffer("floor", torch.full(shape, MIN_SCALE))
        if self.spec.symmetric:
            self.register_buffer("zero_point", torch.zeros(shape))
        else:
            self.offset = torch.nn.Parameter(torch.zeros(shape), requires_grad=self.learns)

    def set_numbers(self, scale: Tensor, zero: Tensor) -> None:
        """See :meth:`Quantizer.set_numbers`."""
        with torch.no_grad():
            self.scale.copy_(scale)
            self.floor.copy_(_floor(scale))
            if self.spec.symmetric:
                self.get_buffer("zero_point").copy_(zero)
            else:
                self.offset.copy_((self.spec.qmin - zero) * scale)

    def numbers(self) -> tuple[Tensor, Tensor]:
        """See :meth:`Quantizer.numbers`."""
        return self._numbers(1.0)

    def quantize(self, x: Tensor) -> Tensor:
        """See :meth:`Quantizer.quantize`."""
        factor = 1.0
        if self.grad_scaling:
            factor = 1.0 / math.sqrt(max(self.elements(x, self.scale.numel()) * self.spec.qmax, 1.0))
        scale, zero = self._numbers(factor)
        return learned_grid(x, self.shaped(scale, x), self.shaped(zero, x), self.spec.qmin, self.spec.qmax)

    def _numbers(self, factor: float) -> tuple[Tensor, Tensor]:
        """Scale and zero point, the gradients of what is learned times a factor."""
        low, high = self.spec.qmin, self.spec.qmax
        scale: Tensor = _Scale.apply(self.scale, self.floor, factor)
        if self.spec.power_of_two:
            scale = scale + (torch.exp2(torch.ceil(torch.log2(scale))) - scale).detach()
        if self.spec.symmetric:
            return scale, self.get_buffer("zero_point")
        return scale, _ZeroPoint.apply(self.offset, scale, low, high, factor)

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Of a checkpoint written before there was an offset, its learned zero point becomes one."""
        scale, zero = state.get(f"{prefix}scale"), state.get(f"{prefix}zero_point")
        if scale is not None and f"{prefix}floor" not in state:
            scale = state[f"{prefix}scale"] = scale.abs().clamp(min=MIN_SCALE)
            state[f"{prefix}floor"] = _floor(scale)
            if zero is not None and not self.spec.symmetric:
                whole = torch.clamp(torch.round(state.pop(f"{prefix}zero_point")), self.spec.qmin, self.spec.qmax)
                state[f"{prefix}offset"] = (self.spec.qmin - whole) * scale
        super()._load_from_state_dict(state, prefix, *rest)


def _floor(scale: Tensor) -> Tensor:
    return (_LEAST * scale).clamp(min=MIN_SCALE)
