"""Operators that read or write a tensor at places that another one names, as ONNX defines them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import torch

from onnxq.torch.attributes import Inputs
from onnxq.torch.ops.math import Op

__all__ = ["OPS"]

Result = tuple[torch.Tensor, ...]

_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}
"""What ONNX calls the reductions of a scattering → what torch does."""


def _gather(node: ir.Node, inputs: Inputs, opset: int) -> Result:
    x, index = inputs
    assert x is not None and index is not None
    axis = node.attributes.get_int("axis", 0) % x.ndim
    index = index.to(torch.int64)
    flat = torch.where(index < 0, index + x.shape[axis], index).reshape(-1)
    return (x.index_select(axis, flat).reshape([*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]]),)


def _gather_elements(node: ir.Node, inputs: Inputs, opset: int) -> Result:
    x, index = inputs
    assert x is not None and index is not None
    axis = node.attributes.get_int("axis", 0)
    index = index.to(torch.int64)
    return (torch.gather(x, axis, torch.where(index < 0, index + x.shape[axis], index)),)


def _gather_nd(node: ir.Node, inputs: Inputs, opset: int) -> Result:
    x, index = inputs
    assert x is not None and index is not None
    batch = node.attributes.get_int("batch_dims", 0)
    index = index.to(torch.int64)
    head = x.shape[:batch]
    rows = int(np.prod(head, dtype=np.int64))
    flat_x, flat_index = x.reshape(rows, *x.shape[batch:]), index.reshape(rows, -1, index.shape[-1])
    picked = [part[tuple(where.unbind(-1))] for part, where in zip(flat_x, flat_index, strict=True)]
    return (torch.stack(picked).reshape(*index.shape[:-1], *x.shape[batch + index.shape[-1] :]),)


def _scatter_elements(node: ir.Node, inputs: Inputs, opset: int) -> Result:
    x, index, updates = inputs
    assert x is not None and index is not None and updates is not None
    axis, how = node.attributes.get_int("axis", 0), node.attributes.get_string("reduction", "none")
    index = index.to(torch.int64)
    index = torch.where(index < 0, index + x.shape[axis], index)
    if how == "none":
        return (x.scatter(axis, index, updates),)
    return (x.scatter_reduce(axis, index, updates, _REDUCTIONS[how or ""]),)


def _scatter_nd(node: ir.Node, inputs: Inputs, opset: int) -> Result:
    x, index, updates = inputs
    assert x is not None and index is not None and updates is not None
    how = node.attributes.get_string("reduction", "none")
    where = index.to(torch.int64).unbind(-1)
    if how == "none":
        return (x.index_put(tuple(where), updates),)
    depth = index.shape[-1]
    row = torch.zeros_like(where[0])  # which of the parts that are updated
    for size, position in zip(x.shape, where, strict=False):
        row = row * size + torch.where(position < 0, position + size, position)
    parts = x.reshape(int(np.prod(x.shape[:depth], dtype=np.int64)), -1)
    given = updates.reshape(-1, parts.shape[1])
    made = parts.scatter_reduce(0, row.reshape(-1, 1).expand_as(given), given, _REDUCTIONS[how or ""])
    return (made.reshape(x.shape),)


OPS: dict[str, Op] = {
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
}
