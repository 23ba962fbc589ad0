"""Elementwise arithmetic, comparisons, activations and reductions, as ONNX defines them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import onnx_ir as ir
import torch
from torch.nn import functional

from onnxq.torch.attributes import Inputs, at, dtype_of, integers, number

__all__ = ["OPS", "Op"]

Tensor = torch.Tensor
Op = Callable[[ir.Node, Inputs, int], tuple[Tensor | None, ...]]


def _plain(function: Callable[..., Tensor]) -> Op:
    """A torch function of the inputs alone."""
    return lambda node, inputs, opset: (function(*inputs),)


def _folded(function: Callable[[Tensor, Tensor], Tensor]) -> Op:
    """A function of two tensors applied to any number of them."""
    return lambda node, inputs, opset: (reduce(function, [x for x in inputs if x is not None]),)


def _with(function: Callable[[ir.Node, Tensor], Tensor]) -> Op:
    """A function of one tensor and the attributes."""

    def run(node: ir.Node, inputs: Inputs, opset: int) -> tuple[Tensor]:
        (x,) = inputs[:1]
        assert x is not None
        return (function(node, x),)

    return run


def _div(a: Tensor, b: Tensor) -> Tensor:
    return a / b if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc")


def _mod(node: ir.Node, inputs: Inputs, opset: int) -> tuple[Tensor]:
    a, b = inputs
    assert a is not None and b is not None
    return (torch.fmod(a, b) if node.attributes.get_int("fmod", 0) else torch.remainder(a, b),)


def _pow(a: Tensor, b: Tensor) -> Tensor:
    return torch.pow(a, b.to(a.dtype) if a.is_floating_point() else b).to(a.dtype)


def _prelu(x: Tensor, slope: Tensor) -> Tensor:
    return torch.where(x < 0, x * slope, x)


def _clip(node: ir.Node, inputs: Inputs, opset: int) -> tuple[Tensor]:
    x = inputs[0]
    assert x is not None
    low: Any = at(inputs, 1)
    high: Any = at(inputs, 2)
    if opset < 11:
        low, high = number(node, "min", -math.inf), number(node, "max", math.inf)
    elif all(end is None or (end.numel() == 1 and not end.requires_grad) for end in (low, high)):
        low, high = (None if end is None else end.item() for end in (low, high))
    if low is None and high is None:
        return (x,)
    return (torch.clamp(x, low, high),)


def _gelu(node: ir.Node, x: Tensor) -> Tensor:
    return functional.gelu(x, approximate=node.attributes.get_string("approximate", "none") or "none")


def _hard_sigmoid(node: ir.Node, x: Tensor) -> Tensor:
    return (x * number(node, "alpha", 0.2) + number(node, "beta", 0.5)).clamp(0.0, 1.0)


def _hard_swish(node: ir.Node, x: Tensor) -> Tensor:
    return x * (x / 6.0 + 0.5).clamp(0.0, 1.0)


def _celu(node: ir.Node, x: Tensor) -> Tensor:
    return functional.celu(x, number(node, "alpha", 1.0))


def _elu(node: ir.Node, x: Tensor) -> Tensor:
    return functional.elu(x, number(node, "alpha", 1.0))


def _selu(node: ir.Node, x: Tensor) -> Tensor:
    alpha, gamma = number(node, "alpha", 1.6732632), number(node, "gamma", 1.050701)
    return gamma * (x.clamp(min=0) + alpha * (torch.exp(x.clamp(max=0)) - 1))


def _leaky(node: ir.Node, x: Tensor) -> Tensor:
    return functional.leaky_relu(x, number(node, "alpha", 0.01))


def _shrink(node: ir.Node, x: Tensor) -> Tensor:
    limit, bias = number(node, "lambd", 0.5), number(node, "bias", 0.0)
    return torch.where(x < -limit, x + bias, torch.where(x > limit, x - bias, torch.zeros_like(x)))


def _thresholded(node: ir.Node, x: Tensor) -> Tensor:
    return torch.where(x > number(node, "alpha", 1.0), x, torch.zeros_like(x))


def _swish(node: ir.Node, x: Tensor) -> Tensor:
    return x * torch.sigmoid(x * number(node, "alpha", 1.0))


def _cast(node: ir.Node, x: Tensor) -> Tensor:
    return x.to(dtype_of(node.attributes["to"].as_int()))


def _is_inf(node: ir.Node, x: Tensor) -> Tensor:
    positive = torch.isposinf(x) if node.attributes.get_int("detect_positive", 1) else torch.zeros_like(x).bool()
    negative = torch.isneginf(x) if node.attributes.get_int("detect_negative", 1) else torch.zeros_like(x).bool()
    return positive | negative


def _soft(function: Callable[..., Tensor]) -> Op:
    """Softmax or LogSoftmax; below opset 13 over all axes from ``axis`` on."""

    def run(node: ir.Node, inputs: Inputs, opset: int) -> tuple[Tensor]:
        x = inputs[0]
        assert x is not None
        axis = node.attributes.get_int("axis", -1 if opset >= 13 else 1)
        if opset >= 13:
            return (function(x, dim=axis),)
        axis = axis % x.ndim if axis < 0 else axis
        rows = math.prod(x.shape[:axis])
        return (function(x.reshape(rows, -1), dim=1).reshape(x.shape),)

    return run


def _reduction(function: Callable[[Tensor, list[int], bool], Tensor]) -> Op:
    def run(node: ir.Node, inputs: Inputs, opset: int) -> tuple[Tensor]:
        x = inputs[0]
        assert x is not None
        axes = integers(node, inputs, 1, "axes")
        if not axes:
            if node.attributes.get_int("noop_with_empty_axes", 0) == 1:  # each element is reduced by itself
                return (function(x.unsqueeze(-1), [x.ndim], False),)
            axes = list(range(x.ndim))
        if not axes:
            return (function(x.reshape(1), [0], False),)
        return (function(x, axes, bool(node.attributes.get_int("keepdims", 1))),)

    return run


def _prod(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    for axis in sorted((a % x.ndim for a in axes), reverse=True):
        x = x.prod(dim=axis, keepdim=keep, dtype=x.dtype)
    return x


def _sum(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    return x.sum(axes, keepdim=keep, dtype=x.dtype)


def _mean(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    if x.is_floating_point():
        return x.mean(axes, keepdim=keep)
    total = _sum(x, axes, keep)
    return torch.div(total, x.numel() // max(total.numel(), 1), rounding_mode="trunc")


def _arg(function: Callable[..., Tensor]) -> Op:
    def run(node: ir.Node, inputs: Inputs, opset: int) -> tuple[Tensor]:
        x = inputs[0]
        assert x is not None
        axis, keep = node.attributes.get_int("axis", 0), bool(node.attributes.get_int("keepdims", 1))
        if node.attributes.get_int("select_last_index", 0):
            found = x.shape[axis] - 1 - function(x.flip(axis), dim=axis, keepdim=keep)
            return (found,)
        return (function(x, dim=axis, keepdim=keep),)

    return run


def _cumsum(node: ir.Node, inputs: Inputs, opset: int) -> tuple[Tensor]:
    x, where = inputs
    assert x is not None and where is not None
    axis = int(where.item())
    back = bool(node.attributes.get_int("reverse", 0))
    flipped = x.flip(axis) if back else x
    found = flipped.cumsum(axis, dtype=x.dtype)
    if node.attributes.get_int("exclusive", 0):
        found = found - flipped
    return (found.flip(axis) if back else found,)


def _einsum(node: ir.Node, inputs: Inputs, opset: int) -> tuple[Tensor]:
    return (torch.einsum(node.attributes["equation"].as_string(), *inputs),)


def _mean_of(node: ir.Node, inputs: Inputs, opset: int) -> tuple[Tensor]:
    given = [x for x in inputs if x is not None]
    return (reduce(torch.add, given) / len(given),)


OPS: dict[str, Op] = {
    **{
        name: _plain(getattr(torch, name.lower()))
        for name in (
            "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh", "Erf", "Exp", "Floor",
            "IsNaN", "Log", "Neg", "Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sin", "Sinh", "Sqrt", "Tan",
            "Tanh", "Sub", "MatMul", "Where",
        )
    },
    "Add": _plain(torch.add),
    "Mul": _plain(torch.mul),
    "Div": _plain(_div),
    "Pow": _plain(_pow),
    "PRelu": _plain(_prelu),
    "Mod": _mod,
    "And": _plain(torch.logical_and),
    "Or": _plain(torch.logical_or),
    "Xor": _plain(torch.logical_xor),
    "Not": _plain(torch.logical_not),
    "Equal": _plain(torch.eq),
    "Greater": _plain(torch.gt),
    "GreaterOrEqual": _plain(torch.ge),
    "Less": _plain(torch.lt),
    "LessOrEqual": _plain(torch.le),
    "Softplus": _plain(lambda x: functional.softplus(x, threshold=30)),
    "Shrink": _with(_shrink),
    "Softsign": _plain(functional.softsign),
    "Mish": _plain(functional.mish),
    "Max": _folded(torch.maximum),
    "Min": _folded(torch.minimum),
    "Sum": _folded(torch.add),
    "Mean": _mean_of,
    "Clip": _clip,
    "Gelu": _with(_gelu),
    "HardSigmoid": _with(_hard_sigmoid),
    "HardSwish": _with(_hard_swish),
    "Celu": _with(_celu),
    "Elu": _with(_elu),
    "Selu": _with(_selu),
    "LeakyRelu": _with(_leaky),
    "ThresholdedRelu": _with(_thresholded),
    "Swish": _with(_swish),
    "Cast": _with(_cast),
    "CastLike": lambda node, inputs, opset: (inputs[0].to(inputs[1].dtype),),  # type: ignore[union-attr]
    "IsInf": _with(_is_inf),
    "Softmax": _soft(torch.softmax),
    "LogSoftmax": _soft(torch.log_softmax),
    "ReduceSum": _reduction(_sum),
    "ReduceMean": _reduction(_mean),
    "ReduceMax": _reduction(lambda x, axes, keep: x.amax(axes, keepdim=keep)),
    "ReduceMin": _reduction(lambda x, axes, keep: x.amin(axes, keepdim=keep)),
    "ReduceProd": _reduction(_prod),
    "ReduceL1": _reduction(lambda x, axes, keep: _sum(x.abs(), axes, keep)),
    "ReduceL2": _reduction(lambda x, axes, keep: _sum(x.square(), axes, keep).sqrt()),
    "ReduceSumSquare": _reduction(lambda x, axes, keep: _sum(x.square(), axes, keep)),
    "ReduceLogSum": _reduction(lambda x, axes, keep: _sum(x, axes, keep).log()),
    "ReduceLogSumExp": _reduction(lambda x, axes, keep: x.logsumexp(axes, keepdim=keep)),
    "ArgMax": _arg(torch.argmax),
    "ArgMin": _arg(torch.argmin),
    "CumSum": _cumsum,
    "Einsum": _einsum,
}  # fmt: skip
"""Operator → function of the node, its inputs and the version of the operator set."""
