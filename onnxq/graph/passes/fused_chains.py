"""The operators that onnxruntime's transformers optimizer fuses, written as exporters write them.

Formulas: onnxruntime's documentation of its operators (docs/ContribOperators.md) and its CPU kernels, which they are
compared with in the tests. A query that a mask hides every key from may get other values than there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from onnxq.graph.passes.attention_chains import by_head, causal, count, rms
from onnxq.graph.passes.chain import Chain
from onnxq.graph.values import constant_array, rename_output

__all__ = ["FUSED", "FUSED_WRITERS", "IS_PLAIN_FUSED", "erf_gelu", "tanh_gelu"]

_DOMAIN = "com.microsoft"
_MASKED = -10000.0
"""What hides a score where a node does not say it."""
_TANH = (2 / np.pi) ** 0.5
_INT64 = ir.DataType.INT64
_LAST = ir.AttrInt64("axis", -1)


def erf_gelu(chain: Chain, x: ir.Value) -> ir.Value:
    """``x / 2 * (1 + erf(x / sqrt(2)))`` (Hendrycks and Gimpel, 2016)."""
    return _half_of(chain, x, chain.put("Erf", chain.put("Div", x, chain.number(2**0.5))))


def tanh_gelu(chain: Chain, x: ir.Value) -> ir.Value:
    """The same with the tangent in place of the error function."""
    cube = chain.put("Mul", chain.put("Mul", x, chain.put("Mul", x, x)), chain.number(0.044715))
    return _half_of(chain, x, chain.put("Tanh", chain.put("Mul", chain.put("Add", x, cube), chain.number(_TANH))))


def _half_of(chain: Chain, x: ir.Value, inner: ir.Value) -> ir.Value:
    product = chain.put("Mul", x, chain.put("Add", inner, chain.number(1.0)))
    return chain.put("Mul", product, chain.number(0.5))


def _gelu(chain: Chain) -> ir.Value:
    return erf_gelu(chain, _with_bias(chain, 1))


def _fast_gelu(chain: Chain) -> ir.Value:
    return tanh_gelu(chain, _with_bias(chain, 1))


def _quick_gelu(chain: Chain) -> ir.Value:
    alpha = chain.node.attributes.get_float("alpha", 1.702)
    inner = chain.x if alpha == 1.0 else chain.put("Mul", chain.x, chain.number(alpha))
    return chain.put("Mul", chain.x, chain.put("Sigmoid", inner))


def _with_bias(chain: Chain, index: int) -> ir.Value:
    bias = chain.input(index)
    return chain.x if bias is None else chain.put("Add", chain.x, bias)


def _is_plain_skip(node: ir.Node) -> bool:
    """Whether nothing is read of a normalization but its result and the sum that it normalizes."""
    return not any(_is_read(node, index) for index in (1, 2))


def _skip_layer_normalization(chain: Chain) -> ir.Value:
    total = _skipped(chain, 4)
    return _normalized(chain, total, chain.input(2), chain.input(3), 1e-12)


def _skip_rms_normalization(chain: Chain) -> ir.Value:
    total, scale = _skipped(chain, 3), chain.input(2)
    assert scale is not None
    return rms(chain, total, scale, (-1,), chain.node.attributes.get_float("epsilon", 1e-12))


def _skipped(chain: Chain, bias: int) -> ir.Value:
    """The sum that is normalized, which may be an output of the node."""
    skip, added = chain.input(1), chain.input(bias)
    assert skip is not None
    total = chain.put("Add", chain.x, skip)
    total = total if added is None else chain.put("Add", total, added)
    if _is_read(chain.node, 3):
        rename_output(total, chain.node.outputs[3])
    return total


def _normalized(chain: Chain, x: ir.Value, scale: ir.Value | None, shift: ir.Value | None, epsilon: float) -> ir.Value:
    assert scale is not None
    given = ir.AttrFloat32("epsilon", chain.node.attributes.get_float("epsilon", epsilon))
    factors = [scale] if shift is None else [scale, shift]
    return chain.put("LayerNormalization", x, *factors, axis=_LAST, epsilon=given)


def _is_plain_embedding(node: ir.Node) -> bool:
    """Whether the lengths that an embedding gives come from a mask, or nothing reads them."""
    return not _is_read(node, 1) or _input(node, 7) is not None


def _embed_layer_normalization(chain: Chain) -> ir.Value:
    ids, segments, words, places, kinds, scale, shift, mask, position = (chain.input(index) for index in range(9))
    assert ids is not None and words is not None and places is not None
    if mask is not None and _is_read(chain.node, 1):
        keepdims = ir.AttrInt64("keepdims", 0)
        lengths = chain.put("ReduceSum", mask, chain.integers(1), dtype=ir.DataType.INT32, keepdims=keepdims)
        rename_output(lengths, chain.node.outputs[1])
    chain.x = words  # whose type the rows have
    total = chain.put("Gather", words, ids)
    if position is not None:
        rows = chain.put("Gather", places, position)
    else:
        length = chain.put("Shape", ids, dtype=_INT64, start=ir.AttrInt64("start", 1), end=ir.AttrInt64("end", 2))
        rows = chain.put("Slice", places, chain.integers(0), length, chain.integers(0))
    total = chain.put("Add", total, rows)
    if segments is not None and kinds is not None:
        total = chain.put("Add", total, chain.put("Gather", kinds, segments))
    if _is_read(chain.node, 2):
        rename_output(total, chain.node.outputs[2])
    return _normalized(chain, total, scale, shift, 1e-12)


def _is_plain_attention(node: ir.Node) -> bool:
    """Whether an Attention has constant weights, no past, a mask with a number for each key, heads of known size."""
    x, weight, bias, mask = (_input(node, index) for index in range(4))
    past = any(_input(node, index) is not None for index in (4, 6)) or _is_read(node, 1)
    if past or node.attributes.get_int("do_rotary", 0) == 1:
        return False
    array = constant_array(weight) if weight is not None else None
    known = bias is None or constant_array(bias) is not None
    if x is None or x.shape is None or len(x.shape) != 3 or array is None or not known:
        return False
    heads = node.attributes.get_int("num_heads", 0)
    return bool(heads) and all(size % heads == 0 for size in _widths(node, array.shape[-1])) and _is_plain_mask(mask, x)


def _attention(chain: Chain) -> ir.Value:
    """Three products with parts of the weight, then heads as in MultiHeadAttention."""
    weight, bias = (constant_array(chain.input(index)) for index in (1, 2))
    assert weight is not None
    ends = np.cumsum(_widths(chain.node, weight.shape[-1]))[:-1]
    shifts = np.split(bias, ends) if bias is not None else (None, None, None)
    parts: list[ir.Value] = []
    for name, matrix, shift in zip(("query", "key", "value"), np.split(weight, ends, axis=1), shifts, strict=True):
        made = chain.put("MatMul", chain.x, chain.constant(f"{name}_weight", np.ascontiguousarray(matrix)))
        if shift is not None:
            made = chain.put("Add", made, chain.constant(f"{name}_bias", np.ascontiguousarray(shift)))
        parts.append(made)
    sizes = _widths(chain.node, weight.shape[-1])
    return _heads(chain, parts, sizes, (0, 3, 5))


def _widths(node: ir.Node, columns: int) -> list[int]:
    """Numbers of a row of queries, keys and values."""
    given = list(node.attributes.get_ints("qkv_hidden_sizes", ()))
    return given if len(given) == 3 else [columns // 3] * 3


def _is_plain_multi_head(node: ir.Node) -> bool:
    """Whether queries, keys and values are apart, three axes each, with heads of known size, and there is no past."""
    operands = [_input(node, index) for index in range(3)]
    if any(_input(node, index) is not None for index in range(6, len(node.inputs))):
        return False
    if any(_is_read(node, index) for index in range(1, len(node.outputs))):
        return False
    heads = node.attributes.get_int("num_heads", 0)
    sizes = [x.shape[-1] for x in operands if x is not None and x.shape is not None and len(x.shape) == 3]
    if not heads or len(sizes) < 3 or any(not isinstance(size, int) or size % heads for size in sizes):
        return False
    bias = _input(node, 3)
    return (bias is None or constant_array(bias) is not None) and _is_plain_mask(_input(node, 4), operands[0])


def _multi_head_attention(chain: Chain) -> ir.Value:
    bias = constant_array(chain.input(3))
    parts: list[ir.Value] = []
    sizes: list[int] = []
    for index, name in enumerate(("query", "key", "value")):
        x = chain.input(index)
        assert x is not None and x.shape is not None
        size, start = x.shape[-1], sum(sizes)
        assert isinstance(size, int)
        if bias is not None:
            x = chain.put("Add", x, chain.constant(f"{name}_bias", np.ascontiguousarray(bias[start : start + size])))
        parts.append(x)
        sizes.append(size)
    return _heads(chain, parts, sizes, (1, 4, 5))


def _heads(chain: Chain, parts: list[ir.Value], sizes: list[int], inputs: tuple[int, int, int]) -> ir.Value:
    """``softmax(scale * Q K^T + mask) V``, head by head.

    Args:
        chain: of the node.
        parts: queries, keys and values, of three axes.
        sizes: numbers of a row of each.
        inputs: which of the node has as many rows as keys; a mask, 0 for keys to be hidden, of batch and keys, or of
            batch, queries and keys; what is added to the scores.
    """
    keys, mask, added = inputs[0], chain.input(inputs[1]), chain.input(inputs[2])
    attributes, number = chain.node.attributes, chain.number
    heads = attributes.get_int("num_heads", 0)
    hidden = attributes.get_float("mask_filter_value", _MASKED)
    scale = attributes.get_float("scale", 0.0) or (sizes[0] // heads) ** -0.5
    scaled = chain.put("Mul", parts[0], number(scale))
    query, key, value = (
        by_head(chain, part, heads, size // heads)
        for part, size in zip((scaled, parts[1], parts[2]), sizes, strict=True)
    )
    scores = chain.put("MatMul", query, chain.put("Transpose", key, perm=ir.AttrInt64s("perm", (0, 1, 3, 2))))
    if mask is not None:
        assert mask.shape is not None
        if len(mask.shape) == 1:  # compared as integers: quantized, a length would be another
            lengths = chain.put("Cast", mask, dtype=_INT64, to=ir.AttrInt64("to", _INT64.value))
            lengths = chain.put("Unsqueeze", lengths, chain.integers(1), dtype=_INT64)
            seen = chain.put("Less", count(chain, key, 0), lengths, dtype=ir.DataType.BOOL)
            lost = chain.put("Where", seen, number(0.0), number(hidden))
        else:
            kept = chain.put("Cast", mask, to=ir.AttrInt64("to", ir.DataType.FLOAT.value))
            lost = chain.put("Mul", chain.put("Sub", number(1.0), kept), number(hidden))
        axes = (1,) if len(mask.shape) == 3 else (1, 2)
        scores = chain.put("Add", scores, chain.put("Unsqueeze", lost, chain.integers(*axes)))
    if attributes.get_int("unidirectional", 0):
        scores = chain.put("Add", scores, causal(chain, query, key, [_rows(chain, 0), _rows(chain, keys)]))
    if added is not None:
        scores = chain.put("Add", scores, added)
    made = chain.put("MatMul", chain.put("Softmax", scores, axis=_LAST), value)
    back = chain.put("Transpose", made, perm=ir.AttrInt64s("perm", (0, 2, 1, 3)))
    return chain.put("Reshape", back, chain.integers(0, 0, sizes[2]))


def _rows(chain: Chain, index: int) -> int | None:
    """How many rows an input of three axes has, where known."""
    x = chain.input(index)
    rows = x.shape[1] if x is not None and x.shape is not None else None
    return rows if isinstance(rows, int) else None


def _is_plain_mask(mask: ir.Value | None, x: ir.Value | None) -> bool:
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
    return len(mask.shape) in (2, 3) or (len(mask.shape) == 1 and (mask.shape[0] == batch or _is_count(mask)))


def _is_count(mask: ir.Value) -> bool:
    """Whether a mask of one axis counts the keys of each sample."""
    node = mask.producer()
    while node is not None and node.op_type == "Cast":
        node = node.inputs[0].producer() if node.inputs[0] is not None else None
    return node is not None and node.op_type in ("EmbedLayerNormalization", "ReduceSum")


def _is_plain_product(node: ir.Node) -> bool:
    """Whether a FusedMatMul moves no axes of batches, and the rank of what it transposes is known."""
    attributes = node.attributes
    if any(attributes.get_int(name, 0) for name in ("transBatchA", "transBatchB")):
        return False
    turned = [x for x, name in zip(node.inputs, ("transA", "transB"), strict=True) if attributes.get_int(name, 0)]
    return all(x is not None and x.shape is not None and len(x.shape) > 1 for x in turned)


def _product(chain: Chain) -> ir.Value:
    attributes = chain.node.attributes
    operands: list[ir.Value] = []
    for index, name in enumerate(("transA", "transB")):
        x = chain.input(index)
        assert x is not None
        if attributes.get_int(name, 0):
            assert x.shape is not None
            axes = [*range(len(x.shape) - 2), len(x.shape) - 1, len(x.shape) - 2]
            x = chain.put("Transpose", x, perm=ir.AttrInt64s("perm", axes))
        operands.append(x)
    made, alpha = chain.put("MatMul", *operands), attributes.get_float("alpha", 1.0)
    return made if alpha == 1.0 else chain.put("Mul", made, chain.number(alpha))


def _input(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def _is_read(node: ir.Node, index: int) -> bool:
    """Whether an output of a node is there and read."""
    output = node.outputs[index] if index < len(node.outputs) else None
    return output is not None and (bool(output.uses()) or output.is_graph_output())


def _always(_: ir.Node) -> bool:
    return True


_KNOWN: Mapping[str, tuple[Callable[[Chain], ir.Value], Callable[[ir.Node], bool]]] = {
    "Attention": (_attention, _is_plain_attention),
    "BiasGelu": (_gelu, _always),
    "EmbedLayerNormalization": (_embed_layer_normalization, _is_plain_embedding),
    "FastGelu": (_fast_gelu, _always),
    "FusedMatMul": (_product, _is_plain_product),
    "Gelu": (_gelu, _always),
    "MultiHeadAttention": (_multi_head_attention, _is_plain_multi_head),
    "QuickGelu": (_quick_gelu, _always),
    "SkipLayerNormalization": (_skip_layer_normalization, _is_plain_skip),
    "SkipSimplifiedLayerNormalization": (_skip_rms_normalization, _is_plain_skip),
}
FUSED = frozenset(f"{_DOMAIN}::{op}" for op in _KNOWN)
"""The operators, with their domain."""
FUSED_WRITERS = {f"{_DOMAIN}::{op}": write for op, (write, _) in _KNOWN.items()}
IS_PLAIN_FUSED = {f"{_DOMAIN}::{op}": plain for op, (_, plain) in _KNOWN.items()}
"""Those of which a node can be written."""
