"""Operators that reorder, cut, join and make tensors, as ONNX defines them."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch.nn import functional

from onnxq.graph.values import constant_array, input_of
from onnxq.torch.attributes import Inputs, at, dtype_of, integers, ints
from onnxq.torch.ops.math import Op

__all__ = ["OPS", "unsupported"]

Tensor = torch.Tensor
Result = tuple[Tensor, ...]

_BOOL_MASK, _TRUE_MASK = 10, 12
"""Operator sets from which the mask of Dropout has truth values, and from which what is kept is true."""


def unsupported(node: ir.Node) -> str | None:
    """What of a node cannot be run here; None where all can."""
    training = input_of(node, 2) if node.op_type == "Dropout" else None
    if training is not None and ((array := constant_array(training)) is None or array.any()):
        return "training_mode"
    return None


def _list(x: Tensor | None) -> list[int]:
    assert x is not None
    return [int(n) for n in x.reshape(-1).tolist()]


def _first(inputs: Inputs) -> Tensor:
    x = inputs[0]
    assert x is not None
    return x


def _shape(node: ir.Node, inputs: Inputs, opset: int) -> Result:
    x = _first(inputs)
    shape = list(x.shape)[node.attributes.get_int("start", 0) :]
    end = node.attributes.get_int("end", None)
    if end is not None:
        shape = list(x.shape)[node.attributes.get_int("start", 0) : end]
    return (torch.tensor(shape, dtype=torch.int64, device=x.device),)


def _size(node: ir.Node, inputs: Inputs, opset: int) -> Result:
    return (torch.tensor(_first(inputs).numel(), dtype=torch.int64, device=_first(inputs).device),)


def _reshape(node: ir.Node, inputs: Inputs, opset: int) -> Result:
    x = _first(inputs)
    shape = integers(node, inputs, 1, "shape") or []
    if not node.attributes.get_int("allowzero", 0):
        shape = [x.shape[i] if n == 0 else n for i, n in enumerate(shape)]
    return (x.reshape(shape),)


def _flatten(node: ir.Node, inputs: Inputs, opset: int) -> Result:
    x = _first(inputs)
    axis = node.attributes.get_int("axis", 1)
    axis = axis + x.ndim if axis < 0 else axis
    rows, columns = (int(np.prod(part, dtype=np.int64)) for part in (x.shape[:axis], x.shape[axis:]))
    return (x.reshape(rows, columns),)


def _transpose(node: ir.Node, inputs: Inputs, opset: int) -> Result:
    x = _first(inputs)
    return (x.permute(ints(node, "perm", range(x.ndim - 1, -1, -1))),)


def _squeeze(node: ir.Node, inputs: Inputs, opset: int) -> Result:
    x = _first(inputs)
    axes = integers(node, inputs, 1, "axes")
    if axes is None:
        return (x.squeeze(),)
    gone = {axis % x.ndim for axis in axes}
    return (x.reshape([n for i, n in enumerate(x.shape) if i not in gone]),)


def _unsqueeze(node: ir.Node, inputs: Inputs, opset: int) -> Result:
    x = _first(inputs)
    axes = integers(node, inputs, 1, "axes") or []
    for axis in sorted(a % (x.ndim + len(axes)) for a in axes):
        x = x.unsqueeze(axis)
    return (x,)


def _expand(node: ir.Node, inputs: Inputs, opset: int) -> Result:
    x = _first(inputs)
    return (x.expand(torch.broadcast_shapes(x.shape, _list(at(inputs, 1)))),)


def _concat(node: ir.Node, inputs: Inputs, opset: int) -> Result:
    return (torch.cat([x for x in inputs if x is not None], node.attributes["axis"].as_int()),)


def _split(node: ir.Node, inputs: Inputs, opset: int) -> Result:
    x = _first(inputs)
    axis = node.attributes.get_int("axis", 0)
    sizes = integers(node, inputs, 1, "split")
    if sizes is None:
        parts = len(node.outputs)
        chunk = -(-x.shape[axis] // parts)
        sizes = [chunk] * (parts - 1) + [x.shape[axis] - chunk * (parts - 1)]
    return tuple(torch.split(x, sizes, axis))


def _slice(node: ir.Node, inputs: Inputs, opset: int) -> Result:
    x = _first(inputs)
    starts, ends = integers(node, inputs, 1, "starts") or [], integers(node, inputs, 2, "ends") or []
    axes = integers(node, inputs, 3, "axes") or list(range(len(starts)))
    steps = integers(node, inputs, 4, "steps") or [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        size = x.shape[axis]
        first, last, _ = slice(start, None if step < 0 and end < -size else end, step).indices(size)
        if step == 1:
            x = x.narrow(axis, first, max(last - first, 0)) if first < size else x.narrow(axis, 0, 0)
        else:
            x = x.index_select(axis, torch.arange(first, last, step, device=x.device) if (last - first) * step > 0
                               else torch.zeros(0, dtype=torch.int64, device=x.device))  # fmt: skip
    return (x,)


def _pad(node: ir.Node, inputs: Inputs, opset: int) -> Result:
    x = _first(inputs)
    pads = integers(node, inputs, 1, "pads") or []
    mode = node.attributes.get_string("mode", "constant")
    fill = at(inputs, 2)
    value: Any = node.attributes.get_float("value", 0.0) if fill is None else fill.item()
    axes = _list(inputs[3]) if len(inputs) > 3 and inputs[3] is not None else list(range(x.ndim))
    half = len(pads) // 2
    before, after = [0] * x.ndim, [0] * x.ndim
    for axis, front, back in zip(axes, pads[:half], pads[half:], strict=True):
        before[axis], after[axis] = front, back
    sides = list(zip(before, after, strict=True))
    if mode == "constant":
        return (functional.pad(x, list(chain.from_iterable(reversed(sides))), value=value),)
    kind = {"reflect": "reflect", "edge": "edge", "wrap": "wrap"}[mode or ""]
    for axis, (front, back) in enumerate(sides):
        if front or back:
            index = np.pad(np.arange(x.shape[axis]), (max(front, 0), max(back, 0)), mode=kind)  # type: ignore[call-overload]
            index = index[max(-front, 0) : len(index) - max(-back, 0)]
            x = x.index_select(axis, torch.as_tensor(index, device=x.device))
    return (x,)


def _tile(node: ir.Node, inputs: Inputs, opset: int) -> Result:
    return (_first(inputs).repeat(_list(at(inputs, 1))),)


def _range(node: ir.Node, inputs: Inputs, opset: int) -> Result:
    start, limit, delta = inputs
    assert start is not None and limit is not None and delta is not None
    return (torch.arange(start.item(), limit.item(), delta.item(), dtype=start.dtype, device=start.device),)


def _constant_of_shape(node: ir.Node, inputs: Inputs, opset: int) -> Result:
    shape = _list(inputs[0])
    given = node.attributes.get("value")
    if given is None:
        return (torch.zeros(shape, device=_first(inputs).device),)
    tensor = given.as_tensor()
    value = tensor.numpy().reshape(-1)[0].item()
    return (torch.full(shape, value, dtype=dtype_of(int(tensor.dtype)), device=_first(inputs).device),)


def _one_hot(node: ir.Node, inputs: Inputs, opset: int) -> Result:
    index, depth, values = inputs
    assert index is not None and depth is not None and values is not None
    size = int(depth.item())
    index = index.to(torch.int64)
    positive = torch.where(index < 0, index + size, index)
    axis = node.attributes.get_int("axis", -1) % (index.ndim + 1)
    view = [1] * (index.ndim + 1)
    view[axis] = size
    hot = positive.unsqueeze(axis) == torch.arange(size, device=index.device).reshape(view)
    return (torch.where(hot, values[1], values[0]),)


def _top_k(node: ir.Node, inputs: Inputs, opset: int) -> Result:
    x = _first(inputs)
    count = _list(at(inputs, 1))[0] if len(inputs) > 1 else node.attributes.get_int("k", 1)
    axis, largest = node.attributes.get_int("axis", -1), bool(node.attributes.get_int("largest", 1))
    ordered = torch.sort(x, dim=axis, descending=largest, stable=True)
    return (ordered.values.narrow(axis, 0, count), ordered.indices.narrow(axis, 0, count))


def _trilu(node: ir.Node, inputs: Inputs, opset: int) -> Result:
    offset = at(inputs, 1)
    k = 0 if offset is None else int(offset.item())
    return (torch.triu(_first(inputs), k) if node.attributes.get_int("upper", 1) else torch.tril(_first(inputs), k),)


def _depth_to_space(node: ir.Node, inputs: Inputs, opset: int) -> Result:
    x, size = _first(inputs), node.attributes["blocksize"].as_int()
    n, c, h, w = x.shape
    if node.attributes.get_string("mode", "DCR") == "DCR":
        x = x.reshape(n, size, size, c // size**2, h, w).permute(0, 3, 4, 1, 5, 2)
    else:
        x = x.reshape(n, c // size**2, size, size, h, w).permute(0, 1, 4, 2, 5, 3)
    return (x.reshape(n, c // size**2, h * size, w * size),)


def _space_to_depth(node: ir.Node, inputs: Inputs, opset: int) -> Result:
    x, size = _first(inputs), node.attributes["blocksize"].as_int()
    n, c, h, w = x.shape
    x = x.reshape(n, c, h // size, size, w // size, size).permute(0, 3, 5, 1, 2, 4)
    return (x.reshape(n, c * size**2, h // size, w // size),)


def _non_zero(node: ir.Node, inputs: Inputs, opset: int) -> Result:
    return (torch.nonzero(_first(inputs)).T,)


def _dropout(node: ir.Node, inputs: Inputs, opset: int) -> Result:
    x = _first(inputs)
    dtype = torch.bool if opset >= _BOOL_MASK else x.dtype
    return (x, torch.full_like(x, opset >= _TRUE_MASK, dtype=dtype))


def _same(node: ir.Node, inputs: Inputs, opset: int) -> Result:
    return (_first(inputs),)


OPS: dict[str, Op] = {
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "DepthToSpace": _depth_to_space,
    "Dropout": _dropout,
    "Expand": _expand,
    "Flatten": _flatten,
    "Identity": _same,
    "NonZero": _non_zero,
    "OneHot": _one_hot,
    "Pad": _pad,
    "Range": _range,
    "Reshape": _reshape,
    "Shape": _shape,
    "Size": _size,
    "Slice": _slice,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "TopK": _top_k,
    "Transpose": _transpose,
    "Trilu": _trilu,
    "Unsqueeze": _unsqueeze,
}
"""Operator → function of the node, its inputs and the version of the operator set."""
