"""Which constants are computed: those whose results are not too large to be stored in the file."""

from __future__ import annotations

import math
from collections.abc import Mapping

import onnx
import onnx_ir as ir

from onnxq.graph.evaluate import piece
from onnxq.graph.note import Note

__all__ = ["MAX_PASSING_BYTES", "MAX_RESULT_BYTES", "within_bounds"]

MAX_RESULT_BYTES = 8 << 10
"""A result above this is only folded when it is at most twice as large as what it is computed from: tables that a file
computes from a few numbers would make it grow, and runtimes compute them once when they load it. So is a smaller one
that is computed by way of one above it."""

MAX_PASSING_BYTES = 64 << 20
"""A result up to this may be larger where it is not stored, since all that reads it is computed as well: the inner
layer of a small net that makes a table (the relative positions of a Swin transformer V2)."""

# The size of their result depends on the numbers, but never exceeds that of their input times the factor.
_BOUNDED = {"NonZero": 8 * 8, "Compress": 1, "Unique": 4}


def within_bounds(model: ir.Model, nodes: list[ir.Node], refused: dict[str, Note]) -> list[ir.Node]:
    """The nodes whose results are known to be small enough, before any of them is computed.

    Args:
        model: what they are part of.
        nodes: each reads nothing but constants and what another of them makes; in order.
        refused: gets a note for each node whose own result is too large.
    """
    outputs = [value for node in nodes for value in node.outputs if value.name]
    proto, _ = piece(nodes, outputs, opset_imports=model.opset_imports, ir_version=model.ir_version)
    sizes = _inferred_sizes(proto)
    origin: dict[ir.Value, int] = {}  # bytes of the constants that a result is computed from
    large: dict[ir.Node, int] = {}  # bytes of a result that would make the file grow
    behind: set[ir.Value] = set()  # computed by way of such a result
    chosen: list[ir.Node] = []
    dropped: set[ir.Value] = set()
    for node in nodes:
        inputs = [value for value in node.inputs if value is not None]
        source = sum(origin.get(v, v.const_value.nbytes if v.const_value is not None else 0) for v in inputs)
        total = None if any(value in dropped for value in inputs) else _size(node, sizes, source)
        if total is None:
            dropped.update(node.outputs)  # perhaps known once its inputs are numbers: looked at again in the next round
            continue
        by_way = not behind.isdisjoint(inputs)
        if total > max(0 if by_way else MAX_RESULT_BYTES, 2 * source):
            large[node] = total
        if by_way or node in large:
            behind.update(node.outputs)
        origin.update(dict.fromkeys(node.outputs, source))
        chosen.append(node)
    return _without_large(chosen, large, refused)


def _size(node: ir.Node, sizes: Mapping[str, int | None], source: int) -> int | None:
    """Bytes of what a node makes, at most; None where that is not known.

    Args:
        node: the node.
        sizes: of tensors, as they were inferred.
        source: bytes of the constants that it is computed from.
    """
    known = [sizes.get(value.name or "") for value in node.outputs if value.name]
    if node.op_type in _BOUNDED:
        known = [_BOUNDED[node.op_type] * max(source, 8) if size is None else size for size in known]
    found = [size for size in known if size is not None]
    return sum(found) if len(found) == len(known) else None


def _without_large(nodes: list[ir.Node], large: dict[ir.Node, int], refused: dict[str, Note]) -> list[ir.Node]:
    """The nodes without those that would leave a large result, and without all that reads one that is left."""
    while True:
        taken = set(nodes)
        left = {
            node
            for node in nodes
            if node in large
            and (
                large[node] > MAX_PASSING_BYTES
                or any(use.node not in taken for value in node.outputs for use in value.uses())
            )
        }
        if not left:
            return nodes
        kept: list[ir.Node] = []
        for node in nodes:
            makers = {value.producer() for value in node.inputs if value is not None}
            if not left.isdisjoint(makers):
                left.add(node)
            elif node not in left:
                kept.append(node)
            else:
                text = f"{node.op_type} of constants left in place: its result has {large[node]} bytes"
                refused[node.name or ""] = Note("constants", node.name or "", text)
        nodes = kept


def _inferred_sizes(proto: onnx.ModelProto) -> dict[str, int | None]:
    """Bytes of each tensor of a piece, as far as shape inference can tell."""
    try:
        # Without data propagation, which keeps every element of large vectors: what hangs on numbers that are not
        # computed yet is looked at again in the next round.
        inferred = onnx.shape_inference.infer_shapes(proto)
    except Exception:  # a malformed piece: nothing is known, nothing gets folded
        return {}
    sizes: dict[str, int | None] = {}
    for info in (*inferred.graph.value_info, *inferred.graph.output):
        tensor = info.type.tensor_type
        if not info.type.HasField("tensor_type") or not tensor.HasField("shape"):
            continue
        dims = [dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim]
        if any(dim is None for dim in dims) or tensor.elem_type == onnx.TensorProto.UNDEFINED:
            continue
        width = (ir.DataType(tensor.elem_type).bitwidth + 7) // 8 if tensor.elem_type != onnx.TensorProto.STRING else 64
        sizes[info.name] = math.prod(dim for dim in dims if dim is not None) * width
    return sizes
