"""Fake-quantization with gradients, bit for bit what :func:`onnxq.qparams.fake_quantize` computes.

The gradient passes straight through the rounding inside the grid and stops outside it; the scale gets that of LSQ
(Esser et al., Learned Step Size Quantization, 2020, equation 3): ``round(x / s) - x / s`` inside, the end of the grid
outside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from onnxq.qparams import QParams, spread

__all__ = ["Grid", "fake_quantize"]

Tensor = torch.Tensor


@dataclass(frozen=True, eq=False)
class Grid:
    """The grid of a tensor, in shapes that broadcast against it.

    Attributes:
        scale: float32.
        zero: zero point, float32.
        low: lowest integer less the zero point, float32.
        high: highest integer less the zero point, float32.
    """

    scale: Tensor
    zero: Tensor
    low: Tensor
    high: Tensor

    @classmethod
    def of(cls, qp: QParams, shape: tuple[int, ...], device: str = "cpu") -> Grid:
        """The grid of parameters for a tensor of a shape.

        Args:
            qp: of at most 16 bits, which float32 holds exactly.
            shape: of the tensor.
            device: where to put it.

        Raises:
            ModelError: they do not fit the shape.
        """
        scale, zero = spread(qp, shape)
        parts = (scale, zero, qp.spec.qmin - zero, qp.spec.qmax - zero)
        return cls(*(torch.from_numpy(np.array(part, np.float32)).to(device) for part in parts))


class _FakeQuantize(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> Tensor:
        ratio = x / scale
        whole = torch.round(ratio)
        if low.ndim:
            codes = torch.maximum(torch.minimum(whole, high), low)
        else:
            codes = whole.clamp(low.item(), high.item())
        if torch.isnan(codes.sum()):
            codes = torch.nan_to_num(codes, nan=0.0)
            whole = torch.nan_to_num(whole, nan=float("inf"))  # outside of the grid
        if ctx.needs_input_grad[1]:
            slope = _inside(ratio, whole, low, high)
            torch.sub(codes, slope, out=slope)
            ctx.save_for_backward(whole, low, high, slope, scale)
        elif ctx.needs_input_grad[0]:
            ctx.save_for_backward(whole, low, high)
        codes += 0.0  # -0.0 has no integer
        return codes * scale

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        whole, low, high, *rest = ctx.saved_tensors
        along = _inside(grad, whole, low, high) if ctx.needs_input_grad[0] else None
        for_scale = None
        if rest:
            slope, scale = rest
            if scale.numel() == 1:
                for_scale = _product(grad, slope).reshape(scale.shape)
            else:
                for_scale = (grad * slope).sum_to_size(scale.shape)
        return along, for_scale, None, None


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Sum of the products, without a tensor of them in memory."""
    if a.ndim == 4 and not a.is_contiguous():  # channels last, as a view in the order of memory
        a, b = a.permute(0, 2, 3, 1), b.permute(0, 2, 3, 1)
    return torch.dot(a.reshape(-1), b.reshape(-1))


def _inside(values: Tensor, whole: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Values where the rounded numbers are on the grid, else 0."""
    if low.ndim:
        return torch.where((whole >= low) & (whole <= high), values, 0.0)
    kept: Tensor = torch.ops.aten.hardtanh_backward(values, whole, low.item() - 0.5, high.item() + 0.5)
    return kept  # much faster than a comparison and a choice


_apply: Callable[..., Tensor] = _FakeQuantize.apply


def fake_quantize(x: Tensor, grid: Grid, scale: Tensor | None = None) -> Tensor:
    """Values on the grid, with straight-through gradients.

    Args:
        x: float32 values.
        grid: of them.
        scale: the scale in place of the grid's, to be learned; of the same shape.

    Returns:
        float32 values of the shape of ``x``.
    """
    return _apply(x, grid.scale if scale is None else scale, grid.low, grid.high)
