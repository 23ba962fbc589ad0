"""Biases in whole units of data scale times weight scale, as targets with int32 biases store them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

__all__ = ["folded_bias_error", "rounded_bias"]

Tensor = torch.Tensor


def rounded_bias(bias: Tensor, data: Tensor, weight: Tensor) -> Tensor:
    """A bias rounded to its grid; the gradient passes straight through.

    Args:
        bias: (channels,).
        data: scale of the data, ().
        weight: scale of the weight, () or (channels,).
    """
    if weight.numel() not in (1, bias.numel()):
        return bias  # of a layer put in the place of another: the quantizer of its weight says so
    with torch.no_grad():
        unit = (data * weight).double()
        gap = (torch.round(bias.double() / unit) * unit).to(bias.dtype) - bias
    return bias + gap


def folded_bias_error(
    result: Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any], bias: Tensor | None, data: Tensor, weight: Tensor
) -> Tensor:
    """What a batch normalization gives, with the error that rounding the folded bias makes.

    In training mode it normalizes by the batch, whose statistics are in no deployed bias: the result is left alone.

    Args:
        result: of the batch normalization, channels on axis 1.
        args: its arguments: x, mean, variance, gamma, beta, training, momentum, epsilon.
        kwargs: those given by name.
        bias: of the layer before it, (channels,).
        data: scale of the layer's data.
        weight: scale of its weight, before folding.
    """
    names = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    if given.get("training") or given.get("running_mean") is None:
        return result
    with torch.no_grad():
        mean, variance = given["running_mean"].double(), given["running_var"].double()
        gamma, beta = given.get("weight"), given.get("bias")
        factor = 1 / torch.sqrt(variance + given.get("eps", 1e-5))
        factor = factor if gamma is None else gamma.double() * factor
        shift = -mean * factor if beta is None else beta.double() - mean * factor
        shift = shift if bias is None else shift + bias.double() * factor
        shift = shift.float().double()
        unit = (data.double() * (weight.double() * factor.abs()).float().double()).float().double()
        gap = torch.where(unit > 0, torch.round(shift / unit) * unit - shift, torch.zeros_like(shift))
        shape = [1, -1, *[1] * (result.ndim - 2)]
    return result + gap.to(result.dtype).reshape(shape)
