"""Attention, MultiHeadAttention and RotaryEmbedding of onnxruntime's own, written as exporters write them.

Formulas as for :mod:`onnxq.graph.passes.fused_chains`. What they keep for the next run (keys and values, with those of
the runs before in front) is theirs to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from onnxq.graph.edits import rename_output
from onnxq.graph.passes.attention_chains import by_head, causal, count, present, rotated
from onnxq.graph.passes.chain import Chain
from onnxq.graph.passes.fused_masks import is_of_new_keys, is_plain_mask, same_size
from onnxq.graph.values import constant_array, input_of, is_read, rank_of, size_along

__all__ = [
    "attention",
    "is_plain_attention",
    "is_plain_multi_head",
    "is_plain_rotation",
    "multi_head_attention",
    "rotary_embedding",
    "widths",
]

_MASKED = -10000.0
"""What hides a score where a node does not say it."""
_INT64 = ir.DataType.INT64
_FLAT, _BY_HEAD = 3, 4
"""Axes of a tensor with the numbers of all heads in a row, and of one with an axis of heads."""


class _Heads(NamedTuple):
    """What an attention is computed from.

    Attributes:
        query: batch, heads, rows, numbers; so are the others.
        key: without the past.
        value: without the past.
        past: keys and values of before, if any.
        rows: of queries, new keys and past ones, where known.
    """

    query: ir.Value
    key: ir.Value
    value: ir.Value
    past: tuple[ir.Value, ir.Value] | None
    rows: tuple[int | None, int | None, int | None]


def is_plain_attention(node: ir.Node) -> bool:
    """Whether an Attention has constant weights, a mask with a number for each key, heads of known size."""
    x, weight, bias, mask = (input_of(node, index) for index in range(4))
    if input_of(node, 6) is not None or node.attributes.get_int("do_rotary", 0) == 1:
        return False
    array = constant_array(weight) if weight is not None else None
    known = bias is None or constant_array(bias) is not None
    if x is None or rank_of(x) != _FLAT or array is None or not known:
        return False
    heads = node.attributes.get_int("num_heads", 0)
    sizes = widths(node, array.shape[-1])
    kept = input_of(node, 4) is not None or is_read(node, 1)
    if kept and sizes[1] != sizes[2]:
        return False  # keys and values are one tensor there
    return bool(heads) and all(size % heads == 0 for size in sizes) and is_plain_mask(mask, x)


def attention(chain: Chain) -> ir.Value:
    """Three products with parts of the weight, then heads as in MultiHeadAttention."""
    weight, bias = (constant_array(chain.input(index)) for index in (1, 2))
    assert weight is not None and chain.x.shape is not None
    sizes, heads = widths(chain.node, weight.shape[-1]), chain.node.attributes.get_int("num_heads", 0)
    ends = np.cumsum(sizes)[:-1]
    shifts = np.split(bias, ends) if bias is not None else (None, None, None)
    parts: list[ir.Value] = []
    for name, matrix, shift in zip(("query", "key", "value"), np.split(weight, ends, axis=1), shifts, strict=True):
        made = chain.put("MatMul", chain.x, chain.constant(f"{name}_weight", np.ascontiguousarray(matrix)))
        if shift is not None:
            made = chain.put("Add", made, chain.constant(f"{name}_bias", np.ascontiguousarray(shift)))
        parts.append(made)
    query, key, value = (by_head(chain, part, heads, size // heads) for part, size in zip(parts, sizes, strict=True))
    both, rows = chain.input(4), size_along(chain.x, 1)
    past, before = None, 0 if both is None else None
    if both is not None:
        first = ir.AttrInt64("axis", 0)
        keys, values = (
            chain.put("Gather", both, chain.constant("which", np.asarray(n, np.int64)), axis=first) for n in (0, 1)
        )
        past = keys, values
        before = size_along(both, 3)
    given = _Heads(query, key, value, past, (rows, rows, before))
    key, value = _with_past(chain, given)
    if is_read(chain.node, 1):
        apart = [chain.put("Unsqueeze", kept, chain.integers(0)) for kept in (key, value)]
        rename_output(chain.put("Concat", *apart, axis=ir.AttrInt64("axis", 0)), chain.node.outputs[1])
    return _attended(chain, given, key, value, (3, 5), sizes[0] // heads, sizes[2])


def widths(node: ir.Node, columns: int) -> list[int]:
    """Numbers of a row of queries, keys and values."""
    given = list(node.attributes.get_ints("qkv_hidden_sizes", ()))
    return given if len(given) == 3 else [columns // 3] * 3


def is_plain_multi_head(node: ir.Node) -> bool:
    """Whether queries, keys and values are apart, with heads of known size, and all of the past is used."""
    query, key, value, bias, mask = (input_of(node, index) for index in range(5))
    past = [input_of(node, index) is not None for index in (6, 7)]
    if any(input_of(node, index) is not None for index in range(8, len(node.inputs))) or past[0] != past[1]:
        return False
    if is_read(node, 3) or (bias is not None and constant_array(bias) is None):
        return False
    axes = _axes(node, (query, key, value))
    if axes is None or axes[1] != axes[2] or (axes[1] == _BY_HEAD and past[0]):
        return False
    if node.attributes.get_int("unidirectional", 0) and not _as_long(query, key):
        return False  # how rows and columns are counted against each other is not said
    return is_plain_mask(mask, query) and not (past[0] and is_of_new_keys(mask, key))


def _axes(node: ir.Node, given: Sequence[ir.Value | None]) -> list[int] | None:
    """How many axes queries, keys and values have; None where these, or their columns, are not those of heads."""
    heads, found = node.attributes.get_int("num_heads", 0), list[int]()
    for index, x in enumerate(given):
        if x is None or x.shape is None or not heads:
            return None
        axes, size = len(x.shape), x.shape[-1]
        if axes != _FLAT and (axes != _BY_HEAD or index == 0):
            return None
        if not isinstance(size, int) or (axes == _FLAT and size % heads):
            return None
        found.append(axes)
    return found


def _as_long(query: ir.Value | None, key: ir.Value | None) -> bool:
    """Whether there are as many new keys as queries."""
    if query is None or key is None or query.shape is None or key.shape is None:
        return False
    return same_size(query.shape[-2], key.shape[-2])


def multi_head_attention(chain: Chain) -> ir.Value:
    """Heads of three tensors; keys and values may have an axis of heads already, then nothing is added to them."""
    bias, heads = constant_array(chain.input(3)), chain.node.attributes.get_int("num_heads", 0)
    parts: list[ir.Value] = []
    start, width, head, rows = 0, 0, 0, list[int | None]()
    for index, name in enumerate(("query", "key", "value")):
        x = chain.input(index)
        assert x is not None and x.shape is not None
        size, flat = x.shape[-1], len(x.shape) == _FLAT
        assert isinstance(size, int)
        width = size if flat else size * heads
        head = width // heads if index == 0 else head
        rows.append(size_along(x, -2))
        if bias is not None and flat:
            x = chain.put("Add", x, chain.constant(f"{name}_bias", np.ascontiguousarray(bias[start : start + width])))
        start += width
        parts.append(by_head(chain, x, heads, width // heads) if flat else x)
    keys, values = chain.input(6), chain.input(7)
    past = (keys, values) if keys is not None and values is not None else None
    before = 0 if keys is None else size_along(keys, 2)
    given = _Heads(parts[0], parts[1], parts[2], past, (rows[0], rows[1], before))
    key, value = _with_past(chain, given)
    key, value = present(chain, 1, key), present(chain, 2, value)
    return _attended(chain, given, key, value, (4, 5), head, width)


def is_plain_rotation(node: ir.Node) -> bool:
    """Whether a RotaryEmbedding has one row of angles for each of its rows, and heads of known size."""
    positions, attributes = input_of(node, 1), node.attributes
    if attributes.get_int("is_packed_batching", 0) or attributes.get_float("scale", 1.0) != 1.0:
        return False
    ranked = rank_of(positions) in (1, 2)
    return ranked and _turned_heads(node) is not None


def rotary_embedding(chain: Chain) -> ir.Value:
    """As that of opset 23, with places of each sample, or the place of the first row of all."""
    found, positions, cos, sin = _turned_heads(chain.node), chain.input(1), chain.input(2), chain.input(3)
    assert found is not None and positions is not None and positions.shape is not None
    assert cos is not None and sin is not None and chain.x.shape is not None
    first = ir.AttrInt64("axis", 0)
    if len(positions.shape) == 1:
        at = len(chain.x.shape) - 2
        rows = chain.put(
            "Shape", chain.x, dtype=_INT64, start=ir.AttrInt64("start", at), end=ir.AttrInt64("end", at + 1)
        )
        zero, one = (chain.constant("step", np.asarray(n, np.int64)) for n in (0, 1))
        places = chain.put("Range", zero, chain.put("Squeeze", rows, dtype=_INT64), one, dtype=_INT64)
        positions = chain.put(
            "Unsqueeze", chain.put("Add", places, positions, dtype=_INT64), chain.integers(0), dtype=_INT64
        )
    angles = [chain.put("Gather", table, positions, axis=first) for table in (cos, sin)]
    return rotated(chain, angles, *found)


def _turned_heads(node: ir.Node) -> tuple[int, int] | None:
    """Number and size of the heads of a RotaryEmbedding, where known; the number counts for an input of three axes."""
    x, table = input_of(node, 0), input_of(node, 2)
    if x is None or x.shape is None or table is None or table.shape is None or len(table.shape) != 2:
        return None
    width, columns = x.shape[-1], table.shape[1]
    heads = node.attributes.get_int("num_heads", 0)
    if not isinstance(width, int) or not isinstance(columns, int) or len(x.shape) not in (_FLAT, _BY_HEAD):
        return None
    if len(x.shape) == _BY_HEAD:
        return heads, width
    part = node.attributes.get_int("rotary_embedding_dim", 0) > 0
    size = (width // heads if heads else 0) if part else 2 * columns
    return (width // size, size) if size and width % size == 0 else None


def _with_past(chain: Chain, given: _Heads) -> Sequence[ir.Value]:
    """Keys and values, those of before in front."""
    made, axis = (given.key, given.value), ir.AttrInt64("axis", 2)
    return (
        made
        if given.past is None
        else [chain.put("Concat", old, new, axis=axis) for old, new in zip(given.past, made, strict=True)]
    )


def _attended(
    chain: Chain, given: _Heads, key: ir.Value, value: ir.Value, inputs: tuple[int, int], size: int, width: int
) -> ir.Value:
    """``softmax(scale * Q K^T + mask) V``, head by head.

    The scale is where exporters have it, on the scores: in front it would be folded into what makes the queries, which
    targets that have the operator whole know by name.

    Args:
        chain: of the node.
        given: what it is computed from.
        key: with the past.
        value: likewise.
        inputs: which of the node is a mask (0 for keys to be hidden, of batch and keys, or of batch, queries and keys,
            or the number of keys of each sample), and which is added to the scores.
        size: numbers of a head of queries.
        width: numbers of a row of values.
    """
    mask, added, number = chain.input(inputs[0]), chain.input(inputs[1]), chain.number
    attributes = chain.node.attributes
    hidden = attributes.get_float("mask_filter_value", _MASKED)
    scores = chain.put("MatMul", given.query, chain.put("Transpose", key, perm=ir.AttrInt64s("perm", (0, 1, 3, 2))))
    scores = chain.put("Mul", scores, number(attributes.get_float("scale", 0.0) or size**-0.5))
    if mask is not None:
        assert mask.shape is not None
        if len(mask.shape) == 1:  # compared as integers: quantized, a length would be another
            lengths = chain.put("Cast", mask, dtype=_INT64, to=ir.AttrInt64("to", _INT64.value))
            lengths = chain.put("Unsqueeze", lengths, chain.integers(1), dtype=_INT64)
            seen = chain.put("Less", _columns(chain, given, key), lengths, dtype=ir.DataType.BOOL)
        else:
            nothing = chain.constant("nothing", np.asarray(0, np.int32))
            seen = chain.put("Greater", mask, nothing, dtype=ir.DataType.BOOL)
        lost = chain.put("Where", seen, number(0.0), number(hidden))
        axes = (1,) if len(mask.shape) == 3 else (1, 2)
        scores = chain.put("Add", scores, chain.put("Unsqueeze", lost, chain.integers(*axes)))
    if attributes.get_int("unidirectional", 0):
        past = given.past[0] if given.past is not None else None
        scores = chain.put("Add", scores, causal(chain, given.query, key, given.rows, past))
    if added is not None:
        scores = chain.put("Add", scores, added)
    made = chain.put("MatMul", chain.put("Softmax", scores, axis=ir.AttrInt64("axis", -1)), value)
    back = chain.put("Transpose", made, perm=ir.AttrInt64s("perm", (0, 2, 1, 3)))
    return chain.put("Reshape", back, chain.integers(0, 0, width))


def _columns(chain: Chain, given: _Heads, key: ir.Value) -> ir.Value:
    """0, 1, 2 … for each key, a constant where their number is known."""
    rows = [n for n in given.rows[1:] if n is not None]
    if len(rows) < len(given.rows[1:]):
        return count(chain, key, 0)
    return chain.constant("columns", np.arange(sum(rows), dtype=np.int64)[None])
