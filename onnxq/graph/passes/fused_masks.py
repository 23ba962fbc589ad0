"""Which masks of onnxruntime's attention operators are plain: the forms in which those are written out."""

from __future__ import annotations

import onnx_ir as ir

__all__ = ["is_of_new_keys", "is_plain_mask", "same_size"]


def is_plain_mask(mask: ir.Value | None, x: ir.Value | None) -> bool:
    """Whether a mask has a number for each key, or is the length of each sample.

    Args:
        mask: if any. Other ones of one axis have both ends, or the ends of all sequences in a row.
        x: whose first axis is the batch.
    """
    if mask is None:
        return True
    if mask.shape is None or mask.dtype is not ir.DataType.INT32:
        return False
    batch = x.shape[0] if x is not None and x.shape is not None else None
    return len(mask.shape) in (2, 3) or (len(mask.shape) == 1 and (same_size(mask.shape[0], batch) or _is_count(mask)))


def same_size(size: int | ir.SymbolicDim, other: int | ir.SymbolicDim | None) -> bool:
    """Whether two sizes are the same number or name: two that are unknown need not be equal."""
    known = isinstance(size, int) or size.value not in (None, "")
    return known and size == other


def is_of_new_keys(mask: ir.Value | None, key: ir.Value | None) -> bool:
    """Whether a mask says nothing of the keys of before."""
    if mask is None or key is None or mask.shape is None or key.shape is None or len(mask.shape) != 2:
        return False
    return same_size(mask.shape[1], key.shape[1])


def _is_count(mask: ir.Value) -> bool:
    """Whether a mask of one axis counts the keys of each sample."""
    node = mask.producer()
    while node is not None and node.op_type == "Cast":
        node = node.inputs[0].producer() if node.inputs[0] is not None else None
    return node is not None and node.op_type in ("EmbedLayerNormalization", "ReduceSum")
