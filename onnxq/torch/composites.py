"""Functions of torch that are several layers or operators, run part by part so that each of them is seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any

import torch
from torch.nn import functional

__all__ = ["BETWEEN", "opened_between", "parts_of"]

Tensor = torch.Tensor
Number = int | float

BETWEEN = "product"
"""Position of the tensor between the two operators that one call is."""


def parts_of(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[..., Any] | None:
    """What computes the same with calls of other functions of torch; None where a call is one operator.

    Args:
        func: a function of torch.
        args: of the call.
        kwargs: of the call.
    """
    if func in _SCALED and all(kwargs.get(name, 1) == 1 for name in ("alpha", "beta")):
        return None
    if func in _SUMS and not (args and isinstance(args[0], Tensor) and args[0].dtype == torch.bool):
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


def _silu(input: Tensor, inplace: bool = False) -> Tensor:
    share = torch.sigmoid(input)
    return input.mul_(share) if inplace else input * share


def _mish(input: Tensor, inplace: bool = False) -> Tensor:
    share = torch.tanh(functional.softplus(input))
    return input.mul_(share) if inplace else input * share


def _glu(input: Tensor, dim: int = -1) -> Tensor:
    first, second = input.chunk(2, dim)
    return first * torch.sigmoid(second)


def _lstm_cell(
    input: Tensor,
    hx: tuple[Tensor, Tensor],
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """See the documentation of torch.nn.LSTMCell."""
    gates = functional.linear(input, w_ih, b_ih) + functional.linear(hx[0], w_hh, b_hh)
    i, f, g, o = gates.chunk(4, 1)
    cell = torch.sigmoid(f) * hx[1] + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(cell), cell


def _gru_cell(
    input: Tensor,
    hx: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> Tensor:
    """See the documentation of torch.nn.GRUCell."""
    r, z, n = functional.linear(input, w_ih, b_ih).chunk(3, 1)
    h_r, h_z, h_n = functional.linear(hx, w_hh, b_hh).chunk(3, 1)
    new = torch.tanh(n + torch.sigmoid(r + h_r) * h_n)
    return new + torch.sigmoid(z + h_z) * (hx - new)


def _tanh_cell(input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, *biases: Tensor | None) -> Tensor:
    return torch.tanh(_sum_of_two(input, hx, w_ih, w_hh, *biases))


def _relu_cell(input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, *biases: Tensor | None) -> Tensor:
    return torch.relu(_sum_of_two(input, hx, w_ih, w_hh, *biases))


def _sum_of_two(
    input: Tensor,
    hx: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> Tensor:
    return functional.linear(input, w_ih, b_ih) + functional.linear(hx, w_hh, b_hh)


def _diff(
    input: Tensor, n: int = 1, dim: int = -1, prepend: Tensor | None = None, append: Tensor | None = None
) -> Tensor:
    """Neighbours less each other, which torch's exporter does not know; masks of transformers are made with it."""
    x = torch.cat([part for part in (prepend, input, append) if part is not None], dim)
    for _ in range(n):
        length = x.size(dim) - 1
        low, high = x.narrow(dim, 0, length), x.narrow(dim, 1, length)
        x = torch.logical_xor(high, low) if x.dtype == torch.bool else high - low
    return x


def _cumsum(input: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Of truth values, which torch's exporter hands to a CumSum as they are."""
    return torch.cumsum(input.to(dtype or torch.int64), dim)


def _vdot(input: Tensor, other: Tensor) -> Tensor:
    """Which torch's exporter does not know; spectral norms are made with it."""
    return (input * other).sum()


def _rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """Which torch's exporter does not know; the parts are those that transformers write."""
    x = input if input.dtype == torch.float32 else input.float()
    axes = tuple(range(-len(normalized_shape), 0))
    least = torch.finfo(input.dtype).eps if eps is None else eps
    x = x * torch.rsqrt(x.pow(2).mean(axes, keepdim=True) + least)
    return x.to(input.dtype) if weight is None else (x * weight).to(input.dtype)


_COMPOSITES: dict[Any, Callable[..., Any]] = {
    functional.multi_head_attention_forward: _opened(functional.multi_head_attention_forward),
    functional.scaled_dot_product_attention: _attention,
    torch.addmm: _addmm,
    torch.Tensor.addmm: _addmm,
    torch.baddbmm: _baddbmm,
    torch.Tensor.baddbmm: _baddbmm,
    functional.rms_norm: _rms_norm,
    functional.silu: _silu,
    functional.mish: _mish,
    functional.glu: _glu,
    torch.lstm_cell: _lstm_cell,
    torch.gru_cell: _gru_cell,
    torch.rnn_tanh_cell: _tanh_cell,
    torch.rnn_relu_cell: _relu_cell,
    torch.diff: _diff,
    torch.Tensor.diff: _diff,
    torch.vdot: _vdot,
    torch.cumsum: _cumsum,
    torch.Tensor.cumsum: _cumsum,
}
"""Functions of several layers, with what runs the layers one by one."""
_SCALED = (torch.addmm, torch.Tensor.addmm)
"""One operator, unless given factors."""
_SUMS = (torch.cumsum, torch.Tensor.cumsum)
"""One operator, unless of truth values."""
