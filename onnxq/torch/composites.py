"""Functions of torch that are several layers or operators, run part by part so that each of them is seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

import torch
from torch.nn import functional

__all__ = ["BETWEEN", "opened_between", "parts_of"]

Tensor = torch.Tensor
Number = int | float

BETWEEN = "product"
"""Position of the tensor between the two operators that one call is."""


def parts_of(func: Callable[..., Any], kwargs: Mapping[str, Any]) -> Callable[..., Any] | None:
    """What computes the same with calls of other functions of torch; None where a call is one operator.

    Args:
        func: a function of torch.
        kwargs: of the call.
    """
    if func in _SCALED and all(kwargs.get(name, 1) == 1 for name in ("alpha", "beta")):
        return None
    return _COMPOSITES.get(func)


def opened_between(
    name: str, args: tuple[Any, ...], change: Callable[[str, Tensor], Tensor]
) -> Callable[..., Any] | None:
    """What computes a call that is two operators in ONNX, the tensor between them changed on its way.

    Args:
        name: of the function.
        args: of the call.
        change: (:data:`BETWEEN`, tensor) → tensor.

    Returns:
        None where the call is one operator.
    """
    matrix = bool(args) and isinstance(args[0], Tensor) and args[0].ndim == 2  # a Gemm
    if name != "linear" or matrix:
        return None

    def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        product = torch.matmul(input, weight.t())
        return product if bias is None else torch.add(bias, change(BETWEEN, product))

    return linear


def _opened(function: Any) -> Callable[..., Any]:
    """A function of torch written in Python whose inner calls are seen: it no longer asks whether a mode is active."""
    names = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    scope = {**function.__globals__, **dict.fromkeys(names, lambda *args: False)}
    scope["scaled_dot_product_attention"] = _attention
    opened = FunctionType(function.__code__, scope, function.__name__, function.__defaults__, function.__closure__)
    opened.__kwdefaults__ = function.__kwdefaults__
    return opened


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attention as its two products and the softmax between them (documentation of scaled_dot_product_attention)."""
    if enable_gqa:
        key = key.repeat_interleave(query.size(-3) // key.size(-3), -3)
        value = value.repeat_interleave(query.size(-3) // value.size(-3), -3)
    factor = float(int(query.size(-1)) ** -0.5) if scale is None else scale
    scores = torch.matmul(query * factor, key.transpose(-2, -1))
    if is_causal:
        rows, columns = scores.size(-2), scores.size(-1)
        visible = torch.ones(rows, columns, dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(visible.logical_not(), float("-inf"))
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(attn_mask.logical_not(), float("-inf"))
        else:
            scores = scores + attn_mask
    share = functional.softmax(scores, dim=-1)
    if dropout_p > 0:
        share = functional.dropout(share, dropout_p)
    return torch.matmul(share, value)


def _addmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
    """The factors inside bias and second matrix, where targets have them."""
    return torch.addmm(_times(input, beta), mat1, _times(mat2, alpha))


def _baddbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
    return torch.add(_times(input, beta), torch.bmm(batch1, _times(batch2, alpha)))


def _times(x: Tensor, factor: Number) -> Tensor:
    return x if factor == 1 else x * factor


_COMPOSITES: dict[Any, Callable[..., Any]] = {
    functional.multi_head_attention_forward: _opened(functional.multi_head_attention_forward),
    functional.scaled_dot_product_attention: _attention,
    torch.addmm: _addmm,
    torch.Tensor.addmm: _addmm,
    torch.baddbmm: _baddbmm,
    torch.Tensor.baddbmm: _baddbmm,
}
"""Functions of several layers, with what runs the layers one by one."""
_SCALED = (torch.addmm, torch.Tensor.addmm)
"""One operator, unless given factors."""
