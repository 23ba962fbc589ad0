"""Convolutions, matrix products, pooling and normalization, as ONNX defines them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import onnx_ir as ir
import torch
from torch.nn import functional

from onnxq.graph.batch_norm import is_in_training
from onnxq.graph.windows import pads_of
from onnxq.torch.attributes import Inputs, at, ints, number
from onnxq.torch.ops.math import Op

__all__ = ["OPS", "unsupported"]

Tensor = torch.Tensor
Result = tuple[Tensor, ...]

_CONV = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
_TRANSPOSED = {1: functional.conv_transpose1d, 2: functional.conv_transpose2d, 3: functional.conv_transpose3d}
_MAX = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}
_MEAN = {1: functional.avg_pool1d, 2: functional.avg_pool2d, 3: functional.avg_pool3d}


def unsupported(node: ir.Node) -> str | None:
    """What of a node's attributes cannot be run here; None where all can."""
    if node.op_type == "AveragePool" and any(d != 1 for d in ints(node, "dilations", [])):
        return "dilations"
    if node.op_type == "MaxPool" and len(node.outputs) > 1 and (node.outputs[1].uses() or node.outputs[1].name):
        return "indices"
    if is_in_training(node):
        return "training_mode"
    return None


def _data(inputs: Inputs) -> tuple[Tensor, Tensor]:
    x, weight = inputs[:2]
    assert x is not None and weight is not None
    return x, weight


def _padded(x: Tensor, sides: Sequence[tuple[int, int]], value: float = 0.0) -> Tensor:
    if not any(chain.from_iterable(sides)):
        return x
    return functional.pad(x, list(chain.from_iterable(reversed(list(sides)))), value=value)


def _conv(node: ir.Node, inputs: Inputs, opset: int) -> Result:
    x, weight = _data(inputs)
    rank = x.ndim - 2
    strides, dilations = ints(node, "strides", [1] * rank), ints(node, "dilations", [1] * rank)
    reach = [(k - 1) * d + 1 for k, d in zip(weight.shape[2:], dilations, strict=True)]
    sides = pads_of(node, x.shape[2:], strides, reach)
    padding = [front for front, _ in sides]
    if any(front != back for front, back in sides):
        x, padding = _padded(x, sides), [0] * rank
    group = node.attributes.get_int("group", 1)
    return (_CONV[rank](x, weight, at(inputs, 2), strides, padding, dilations, group),)


def _conv_transpose(node: ir.Node, inputs: Inputs, opset: int) -> Result:
    x, weight = _data(inputs)
    rank = x.ndim - 2
    strides, dilations = ints(node, "strides", [1] * rank), ints(node, "dilations", [1] * rank)
    extra = ints(node, "output_padding", [0] * rank)
    group = node.attributes.get_int("group", 1)
    full = _TRANSPOSED[rank](x, weight, None, strides, 0, 0, group, dilations)
    auto = node.attributes.get_string("auto_pad", "NOTSET")
    pads = ints(node, "pads", [0] * (2 * rank))
    shape = ints(node, "output_shape", [])[-rank:] if "output_shape" in node.attributes else None
    if auto in ("SAME_UPPER", "SAME_LOWER") and shape is None:
        shape = [n * s for n, s in zip(x.shape[2:], strides, strict=True)]
    sides = []
    for axis in range(rank):
        size = full.shape[axis + 2]
        if shape is None:
            front, wanted = pads[axis], size + extra[axis] - pads[axis] - pads[axis + rank]
        else:
            total = max(size + extra[axis] - shape[axis], 0)
            front, wanted = (total // 2 if auto == "SAME_UPPER" else total - total // 2), shape[axis]
        sides.append((-front, wanted + front - size))
    y = _padded(full, sides)
    bias = at(inputs, 2)
    return (y if bias is None else y + bias.reshape(-1, *([1] * rank)),)


def _gemm(node: ir.Node, inputs: Inputs, opset: int) -> Result:
    a, b = _data(inputs)
    c = at(inputs, 2)
    a = a.T if node.attributes.get_int("transA", 0) else a
    b = b.T if node.attributes.get_int("transB", 0) else b
    alpha, beta = number(node, "alpha", 1.0), number(node, "beta", 1.0)
    y = a @ b if alpha == 1 else alpha * (a @ b)
    return (y if c is None or beta == 0 else y + (c if beta == 1 else beta * c),)


def _windows(node: ir.Node, x: Tensor) -> tuple[list[int], list[int], list[int], list[tuple[int, int]], list[int]]:
    """Kernel, strides, dilations, paddings, and what is missing behind for the last window of ``ceil_mode``."""
    rank = x.ndim - 2
    kernel = node.attributes["kernel_shape"].as_ints()
    strides, dilations = ints(node, "strides", [1] * rank), ints(node, "dilations", [1] * rank)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    sides = pads_of(node, x.shape[2:], strides, reach)
    more = [0] * rank
    if node.attributes.get_int("ceil_mode", 0):
        for axis, (front, back) in enumerate(sides):
            size, stride = x.shape[axis + 2], strides[axis]
            steps = -(-(size + front + back - reach[axis]) // stride)
            if steps * stride >= size + front:
                steps -= 1  # a window must begin in the data or in front of it
            more[axis] = max(steps * stride + reach[axis] - (size + front + back), 0)
    return list(kernel), strides, dilations, sides, more


def _behind(sides: Sequence[tuple[int, int]], more: Sequence[int]) -> list[tuple[int, int]]:
    return [(front, back + extra) for (front, back), extra in zip(sides, more, strict=True)]


def _max_pool(node: ir.Node, inputs: Inputs, opset: int) -> Result:
    x = inputs[0]
    assert x is not None
    kernel, strides, dilations, sides, more = _windows(node, x)
    x = _padded(x, _behind(sides, more), float("-inf"))
    return (_MAX[x.ndim - 2](x, kernel, strides, 0, dilations),)


def _average_pool(node: ir.Node, inputs: Inputs, opset: int) -> Result:
    x = inputs[0]
    assert x is not None
    kernel, strides, _, sides, more = _windows(node, x)
    pool = _MEAN[x.ndim - 2]
    sides_all = _behind(sides, more)
    y = pool(_padded(x, sides_all), kernel, strides)
    if not any(chain.from_iterable(sides_all)):
        return (y,)
    ones = torch.ones_like(x[:1, :1])
    inside = node.attributes.get_int("count_include_pad", 0)
    ones = _padded(ones, sides, 1.0 if inside else 0.0)
    share = pool(_padded(ones, [(0, extra) for extra in more]), kernel, strides)
    return (y / share,)


def _global(function: str) -> Op:
    def run(node: ir.Node, inputs: Inputs, opset: int) -> Result:
        x = inputs[0]
        assert x is not None
        axes = list(range(2, x.ndim))
        return (x.mean(axes, keepdim=True) if function == "mean" else x.amax(axes, keepdim=True),)

    return run


def _column(x: Tensor | None, like: Tensor) -> Tensor:
    assert x is not None
    return x.reshape(1, -1, *([1] * (like.ndim - 2)))


def _batch_norm(node: ir.Node, inputs: Inputs, opset: int) -> Result:
    x = inputs[0]
    assert x is not None
    scale, bias, mean, variance = (_column(v, x) for v in inputs[1:5])
    return ((x - mean) * (scale / torch.sqrt(variance + number(node, "epsilon", 1e-5))) + bias,)


def _instance_norm(node: ir.Node, inputs: Inputs, opset: int) -> Result:
    x = inputs[0]
    assert x is not None
    return (functional.instance_norm(x, weight=inputs[1], bias=inputs[2], eps=number(node, "epsilon", 1e-5)),)


def _group_norm(node: ir.Node, inputs: Inputs, opset: int) -> Result:
    x, scale, bias = inputs
    assert x is not None and scale is not None and bias is not None
    groups = node.attributes["num_groups"].as_int()
    if scale.numel() != x.shape[1]:  # opset 18: one number a group
        scale, bias = (v.repeat_interleave(x.shape[1] // groups) for v in (scale, bias))
    return (functional.group_norm(x, groups, scale, bias, number(node, "epsilon", 1e-5)),)


def _layer_norm(node: ir.Node, inputs: Inputs, opset: int) -> tuple[Tensor | None, ...]:
    x, scale = _data(inputs)
    bias = at(inputs, 2)
    axes = list(range(node.attributes.get_int("axis", -1) % x.ndim, x.ndim))
    mean = x.mean(axes, keepdim=True)
    centred = x - mean
    inverse = torch.rsqrt(centred.square().mean(axes, keepdim=True) + number(node, "epsilon", 1e-5))
    y = centred * inverse * scale
    return (y if bias is None else y + bias, mean, inverse)


def _rms_norm(node: ir.Node, inputs: Inputs, opset: int) -> Result:
    x, scale = _data(inputs)
    axes = list(range(node.attributes.get_int("axis", -1) % x.ndim, x.ndim))
    return (x * torch.rsqrt(x.square().mean(axes, keepdim=True) + number(node, "epsilon", 1e-5)) * scale,)


def _lrn(node: ir.Node, inputs: Inputs, opset: int) -> Result:
    x = inputs[0]
    assert x is not None
    size = node.attributes["size"].as_int()
    squares = functional.pad(x.square(), [0, 0] * (x.ndim - 2) + [(size - 1) // 2, size // 2])
    total = squares.unfold(1, size, 1).sum(-1)
    alpha, beta, bias = number(node, "alpha", 1e-4), number(node, "beta", 0.75), number(node, "bias", 1.0)
    return (x / (bias + alpha / size * total) ** beta,)


def _lp_norm(node: ir.Node, inputs: Inputs, opset: int) -> Result:
    x = inputs[0]
    assert x is not None
    axis, p = node.attributes.get_int("axis", -1), node.attributes.get_int("p", 2)
    norm = torch.linalg.vector_norm(x, p, dim=axis, keepdim=True)
    return (torch.where(norm == 0, torch.zeros_like(x), x / norm),)


OPS: dict[str, Op] = {
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Gemm": _gemm,
    "GlobalAveragePool": _global("mean"),
    "GlobalMaxPool": _global("max"),
    "GroupNormalization": _group_norm,
    "InstanceNormalization": _instance_norm,
    "LRN": _lrn,
    "LayerNormalization": _layer_norm,
    "LpNormalization": _lp_norm,
    "MaxPool": _max_pool,
    "RMSNormalization": _rms_norm,
}
"""Operator → function of the node, its inputs and the version of the operator set."""
