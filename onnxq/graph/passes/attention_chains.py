"""The operators that opset 23 has for transformers, written as older exporters write them.

Formulas: the operator specification, https://onnx.ai/onnx/operators (Attention-24, RotaryEmbedding-23,
RMSNormalization-23), whose function bodies compute the same. Two differences: Q alone takes the whole scale, not Q and
K its root each, which rounds differently; and a query that masks hide every key from gets the mean of the values here,
where the operator gives 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnxq.graph.edits import rename_output
from onnxq.graph.passes.chain import Chain
from onnxq.graph.values import rank_of, size_along

__all__ = [
    "attention",
    "by_head",
    "causal",
    "count",
    "is_plain_attention",
    "is_plain_normalization",
    "is_plain_rotation",
    "present",
    "rms",
    "rms_normalization",
    "rotary_embedding",
    "rotated",
]

_HIDDEN = -1e4
"""What is added to a score that a mask hides: nothing is left of it behind a softmax, and half precision has it too."""
_INT64, _BOOL = ir.DataType.INT64, ir.DataType.BOOL
_MASK, _PAST_KEY, _PAST_VALUE, _NONPAD = 3, 4, 5, 6


def is_plain_normalization(node: ir.Node) -> bool:
    """Whether an RMSNormalization can be written: which axes it takes the mean over is known."""
    x = node.inputs[0]
    return node.attributes.get_int("axis", -1) == -1 or (x is not None and x.shape is not None)


def rms_normalization(chain: Chain) -> ir.Value:
    """The root mean square of the last axes becomes 1."""
    node, x = chain.node, chain.x
    axis, epsilon = node.attributes.get_int("axis", -1), node.attributes.get_float("epsilon", 1e-5)
    rank = rank_of(x) or 0
    axes = (-1,) if axis == -1 else tuple(range(axis % rank, rank))
    scale = chain.input(1)
    assert scale is not None
    return rms(chain, x, scale, axes, epsilon)


def rms(chain: Chain, x: ir.Value, scale: ir.Value, axes: Sequence[int], epsilon: float) -> ir.Value:
    """``x / sqrt(mean(x²) + epsilon) * scale``."""
    squares = chain.put("Pow", x, chain.number(2.0))
    mean = chain.reduce("ReduceMean", squares, *axes)
    root = chain.put("Sqrt", chain.put("Add", mean, chain.number(epsilon)))
    return chain.put("Mul", chain.put("Div", x, root), scale)


def is_plain_rotation(node: ir.Node) -> bool:
    """Whether a RotaryEmbedding can be written: the size of its heads is known."""
    return _head_size(node.inputs[0], node.attributes.get_int("num_heads", 0)) is not None


def rotary_embedding(chain: Chain) -> ir.Value:
    """Pairs of a head's numbers, turned by angles whose cosines and sines are tables."""
    node = chain.node
    heads = node.attributes.get_int("num_heads", 0)
    size = _head_size(chain.x, heads)
    assert size is not None
    tables, positions = [chain.input(1), chain.input(2)], chain.input(3)
    return rotated(chain, [_rows(chain, table, positions) for table in tables], heads, size)


def rotated(chain: Chain, angles: Sequence[ir.Value], heads: int, size: int) -> ir.Value:
    """The first input of a node, whose attributes those of RotaryEmbedding are.

    Args:
        chain: of the node.
        angles: cosines and sines, of batch, rows, and half of the numbers that are turned.
        heads: their number, for an input of three axes.
        size: numbers of a head.
    """
    node, x = chain.node, chain.x
    assert x.shape is not None
    flat = len(x.shape) == 3
    turned = node.attributes.get_int("rotary_embedding_dim", 0) or size
    interleaved = node.attributes.get_int("interleaved", 0) == 1
    if flat:
        x = chain.put("Reshape", x, chain.integers(0, 0, heads, size))
    axis = chain.integers(2 if flat else 1)  # that of the heads
    cos, sin = (chain.put("Unsqueeze", rows, axis) for rows in angles)
    if interleaved:
        first, second = (_part(chain, x, start, turned, 2) for start in (0, 1))
    else:
        first, second = _part(chain, x, 0, turned // 2), _part(chain, x, turned // 2, turned)
    real = chain.put("Sub", chain.put("Mul", first, cos), chain.put("Mul", second, sin))
    imaginary = chain.put("Add", chain.put("Mul", first, sin), chain.put("Mul", second, cos))
    last = ir.AttrInt64("axis", -1)
    if interleaved:
        behind = chain.integers(-1)
        pairs = chain.put("Concat", *(chain.put("Unsqueeze", v, behind) for v in (real, imaginary)), axis=last)
        parts = [chain.put("Reshape", pairs, chain.integers(0, 0, *((heads,) if flat else (0,)), turned))]
    else:
        parts = [real, imaginary]
    parts += [_part(chain, x, turned, size)] if turned < size else []
    made = chain.put("Concat", *parts, axis=last) if len(parts) > 1 else parts[0]
    return chain.put("Reshape", made, chain.integers(0, 0, heads * size)) if flat else made


def is_plain_attention(node: ir.Node) -> bool:
    """Whether an Attention can be written: head numbers and sizes are known, and it has nothing that only it can do."""
    given = [value is not None for value in node.inputs] + [False] * 7
    if given[_NONPAD] or any(value.uses() or value.is_graph_output() for value in node.outputs[3:]):
        return False
    sizes = [_heads(node, index) for index in range(3)]
    if None in sizes or given[_PAST_KEY] != given[_PAST_VALUE]:
        return False
    mask = node.inputs[_MASK] if given[_MASK] else None
    shorter = mask is not None and (mask.shape is None or len(mask.shape) < 1 or mask.shape[-1] == 1)
    return not shorter and (mask is None or mask.dtype in (ir.DataType.FLOAT, _BOOL))


def attention(chain: Chain) -> ir.Value:
    """``softmax(scale * Q K^T + mask) V``, head by head."""
    node = chain.node
    (heads, size), (shared, _), (_, width) = (_known(node, index) for index in range(3))
    key, value = chain.input(1), chain.input(2)
    assert key is not None and value is not None and chain.x.shape is not None
    flat = len(chain.x.shape) == 3
    scale = node.attributes.get_float("scale", 0.0) or size**-0.5
    query = _by_head(chain, chain.put("Mul", chain.x, chain.number(scale)), heads, size)
    key, value = _by_head(chain, key, shared, size), _by_head(chain, value, shared, width)
    past_key, past_value = chain.input(_PAST_KEY), chain.input(_PAST_VALUE)
    if past_key is not None and past_value is not None:
        rows = ir.AttrInt64("axis", 2)
        key, value = chain.put("Concat", past_key, key, axis=rows), chain.put("Concat", past_value, value, axis=rows)
    key, value = present(chain, 1, key), present(chain, 2, value)
    bias = _bias(chain, query, key, past_key)
    if 1 < shared < heads:
        key, value = _repeated(chain, key, heads, shared, size), _repeated(chain, value, heads, shared, width)
    scores = chain.put("MatMul", query, chain.put("Transpose", key, perm=ir.AttrInt64s("perm", (0, 1, 3, 2))))
    cap = node.attributes.get_float("softcap", 0.0)
    if cap:
        limit = chain.number(cap)
        scores = chain.put("Mul", chain.put("Tanh", chain.put("Div", scores, limit)), limit)
    for added in bias:
        scores = chain.put("Add", scores, added)
    made = chain.put("MatMul", chain.put("Softmax", scores, axis=ir.AttrInt64("axis", -1)), value)
    if not flat:
        return made
    back = chain.put("Transpose", made, perm=ir.AttrInt64s("perm", (0, 2, 1, 3)))
    return chain.put("Reshape", back, chain.integers(0, 0, heads * width))


def _rows(chain: Chain, table: ir.Value | None, positions: ir.Value | None) -> ir.Value:
    """The cosines or sines of each place."""
    assert table is not None
    return table if positions is None else chain.put("Gather", table, positions, axis=ir.AttrInt64("axis", 0))


def _part(chain: Chain, x: ir.Value, start: int, end: int, step: int = 1) -> ir.Value:
    """A part of the last axis."""
    return chain.put("Slice", x, *(chain.integers(n) for n in (start, end, -1, step)))


def _head_size(x: ir.Value | None, heads: int) -> int | None:
    """Numbers of a head, of a tensor with an axis of heads or with all of them one after the other, where known."""
    if x is None or x.shape is None or len(x.shape) not in (3, 4) or not isinstance(x.shape[-1], int):
        return None
    if len(x.shape) == 4:
        return x.shape[-1]
    return x.shape[-1] // heads if heads and x.shape[-1] % heads == 0 else None


def _heads(node: ir.Node, index: int) -> tuple[int, int] | None:
    """Number and size of the heads of Q, K or V, where known."""
    x = node.inputs[index]
    heads = node.attributes.get_int("q_num_heads" if index == 0 else "kv_num_heads", 0)
    if x is not None and x.shape is not None and len(x.shape) == 4:
        number = x.shape[1]
        heads = number if isinstance(number, int) else 0
    size = _head_size(x, heads)
    return (heads, size) if heads and size is not None else None


def _known(node: ir.Node, index: int) -> tuple[int, int]:
    found = _heads(node, index)
    assert found is not None
    return found


def _by_head(chain: Chain, x: ir.Value, heads: int, size: int) -> ir.Value:
    """Batch, heads, rows, numbers; of three axes or of these already."""
    return x if rank_of(chain.x) == 4 else by_head(chain, x, heads, size)


def by_head(chain: Chain, x: ir.Value, heads: int, size: int) -> ir.Value:
    """Batch, heads, rows, numbers; of batch, rows, numbers of all heads."""
    apart = chain.put("Reshape", x, chain.integers(0, 0, heads, size))
    return chain.put("Transpose", apart, perm=ir.AttrInt64s("perm", (0, 2, 1, 3)))


def present(chain: Chain, index: int, made: ir.Value) -> ir.Value:
    """Keys or values with those of before, which may be an output of the node."""
    output = chain.node.outputs[index] if index < len(chain.node.outputs) else None
    if output is None or not (output.uses() or output.is_graph_output()):
        return made
    if made.producer() is None or made is chain.input(index):
        made = chain.put("Identity", made)
    rename_output(made, output)
    return made


def _repeated(chain: Chain, x: ir.Value, heads: int, shared: int, size: int) -> ir.Value:
    """Each head of keys or values as often as queries share it."""
    copies = chain.put("Unsqueeze", x, chain.integers(2))
    copies = chain.put("Expand", copies, chain.integers(1, 1, heads // shared, 1, 1))
    return chain.put("Reshape", copies, chain.integers(0, heads, -1, size))


def _bias(chain: Chain, query: ir.Value, key: ir.Value, past: ir.Value | None) -> list[ir.Value]:
    """What is added to the scores: for the past alone, and for the mask."""
    added: list[ir.Value] = []
    if chain.node.attributes.get_int("is_causal", 0):
        lengths = [chain.input(0), chain.input(1), *([past] if past is not None else [])]
        added.append(causal(chain, query, key, [size_along(x, -2) for x in lengths], past))
    mask = chain.input(_MASK)
    if mask is not None and mask.dtype == _BOOL:
        added.append(chain.put("Where", mask, chain.number(0.0), chain.number(_HIDDEN)))
    elif mask is not None:
        added.append(mask)
    return added


def causal(
    chain: Chain, query: ir.Value, key: ir.Value, lengths: Sequence[int | None], past: ir.Value | None = None
) -> ir.Value:
    """What hides from each row the columns behind its own, those of the past in front.

    Args:
        chain: of the node.
        query: of four axes.
        key: likewise, with those of the past.
        lengths: rows of queries, new keys and past ones, where known.
        past: keys of before.
    """
    if None not in lengths:
        rows, new, before = (n or 0 for n in (*lengths, 0)[:3])
        hidden = np.arange(before + new)[None] > np.arange(rows)[:, None] + before
        return chain.constant("causal", np.where(hidden, np.float32(_HIDDEN), np.float32(0)))
    place, columns = count(chain, query, 1), count(chain, key, 0)
    if past is not None:
        place = chain.put("Add", place, _rows_of(chain, past), dtype=_INT64)
    seen = chain.put("Greater", columns, place, dtype=_BOOL)
    return chain.put("Where", seen, chain.number(_HIDDEN), chain.number(0.0))


def count(chain: Chain, x: ir.Value, axis: int) -> ir.Value:
    """0, 1, 2 … for each row of a tensor of heads, as a column (axis 1) or as a row (0)."""
    zero, one = (chain.constant("step", np.asarray(n, np.int64)) for n in (0, 1))
    end = chain.put("Squeeze", _rows_of(chain, x), dtype=_INT64)
    return chain.put("Unsqueeze", chain.put("Range", zero, end, one, dtype=_INT64), chain.integers(axis), dtype=_INT64)


def _rows_of(chain: Chain, x: ir.Value) -> ir.Value:
    """How many rows a tensor of heads has, as the model computes it."""
    return chain.put("Shape", x, dtype=_INT64, start=ir.AttrInt64("start", 2), end=ir.AttrInt64("end", 3))
