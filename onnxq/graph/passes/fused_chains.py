"""The operators that onnxruntime's transformers optimizer fuses, written as exporters write them.

Formulas: onnxruntime's documentation of its operators (docs/ContribOperators.md) and its CPU kernels, which they are
compared with in the tests. A query that a mask hides every key from may get other values than there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from onnxq.graph.domains import MICROSOFT
from onnxq.graph.edits import rename_output
from onnxq.graph.passes.attention_chains import rms
from onnxq.graph.passes.chain import Chain
from onnxq.graph.passes.fused_heads import (
    attention,
    is_plain_attention,
    is_plain_multi_head,
    is_plain_rotation,
    multi_head_attention,
    rotary_embedding,
)
from onnxq.graph.values import input_of, is_read, rank_of

__all__ = ["FUSED", "FUSED_WRITERS", "IS_PLAIN_FUSED", "erf_gelu", "swish", "tanh_gelu"]

_TANH = (2 / np.pi) ** 0.5
_INT64 = ir.DataType.INT64
_LAST = ir.AttrInt64("axis", -1)


def erf_gelu(chain: Chain, x: ir.Value) -> ir.Value:
    """``x / 2 * (1 + erf(x / sqrt(2)))`` (Hendrycks and Gimpel, 2016)."""
    return _half_of(chain, x, chain.put("Erf", chain.put("Div", x, chain.number(2**0.5))))


def tanh_gelu(chain: Chain, x: ir.Value) -> ir.Value:
    """The same with the tangent in place of the error function, in the one order without Pow that onnxruntime fuses."""
    square = chain.put("Mul", chain.put("Mul", x, chain.number(0.044715)), x)
    inner = chain.put("Mul", chain.put("Add", square, chain.number(1.0)), chain.put("Mul", x, chain.number(_TANH)))
    return _half_of(chain, x, chain.put("Tanh", inner))


def _half_of(chain: Chain, x: ir.Value, inner: ir.Value) -> ir.Value:
    half = chain.put("Mul", x, chain.number(0.5))
    return chain.put("Mul", half, chain.put("Add", inner, chain.number(1.0)))


def _gelu(chain: Chain) -> ir.Value:
    return erf_gelu(chain, _with_bias(chain, 1))


def _fast_gelu(chain: Chain) -> ir.Value:
    return tanh_gelu(chain, _with_bias(chain, 1))


def _quick_gelu(chain: Chain) -> ir.Value:
    return swish(chain, 1.702)


def swish(chain: Chain, default: float) -> ir.Value:
    """``x * sigmoid(alpha x)``; ``default``: alpha where the node does not say it."""
    alpha = chain.node.attributes.get_float("alpha", default)
    inner = chain.x if alpha == 1.0 else chain.put("Mul", chain.x, chain.number(alpha))
    return chain.put("Mul", chain.x, chain.put("Sigmoid", inner))


def _with_bias(chain: Chain, index: int) -> ir.Value:
    bias = chain.input(index)
    return chain.x if bias is None else chain.put("Add", chain.x, bias)


def _is_plain_skip(node: ir.Node) -> bool:
    """Whether nothing is read of a normalization but its result and the sum that it normalizes."""
    return not any(is_read(node, index) for index in (1, 2))


def _skip_layer_normalization(chain: Chain) -> ir.Value:
    total = _skipped(chain, 4)
    return _normalized(chain, total, chain.input(2), chain.input(3), 1e-12)


def _skip_rms_normalization(chain: Chain) -> ir.Value:
    total, scale = _skipped(chain, 3), chain.input(2)
    assert scale is not None
    return rms(chain, total, scale, (-1,), chain.node.attributes.get_float("epsilon", 1e-12))


def _skipped(chain: Chain, bias: int) -> ir.Value:
    """The sum that is normalized, which may be an output of the node."""
    skip = chain.input(1)
    assert skip is not None
    total = chain.put("Add", _with_bias(chain, bias), skip)
    if is_read(chain.node, 3):
        rename_output(total, chain.node.outputs[3])
    return total


def _normalized(chain: Chain, x: ir.Value, scale: ir.Value | None, shift: ir.Value | None, epsilon: float) -> ir.Value:
    assert scale is not None
    given = ir.AttrFloat32("epsilon", chain.node.attributes.get_float("epsilon", epsilon))
    factors = [scale] if shift is None else [scale, shift]
    return chain.put("LayerNormalization", x, *factors, axis=_LAST, epsilon=given)


def _is_plain_embedding(node: ir.Node) -> bool:
    """Whether the lengths that an embedding gives come from a mask, or nothing reads them."""
    return not is_read(node, 1) or input_of(node, 7) is not None


def _embed_layer_normalization(chain: Chain) -> ir.Value:
    ids, segments, words, places, kinds, scale, shift, mask, position = (chain.input(index) for index in range(9))
    assert ids is not None and words is not None and places is not None
    if mask is not None and is_read(chain.node, 1):
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
    if is_read(chain.node, 2):
        rename_output(total, chain.node.outputs[2])
    return _normalized(chain, total, scale, shift, 1e-12)


def _is_plain_product(node: ir.Node) -> bool:
    """Whether a FusedMatMul moves no axes of batches, and the rank of what it transposes is known."""
    attributes = node.attributes
    if any(attributes.get_int(name, 0) for name in ("transBatchA", "transBatchB")):
        return False
    turned = [input_of(node, at) for at, name in enumerate(("transA", "transB")) if attributes.get_int(name, 0)]
    return all((rank_of(x) or 0) > 1 for x in turned)


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


def _always(_: ir.Node) -> bool:
    return True


_KNOWN: Mapping[str, tuple[Callable[[Chain], ir.Value], Callable[[ir.Node], bool]]] = {
    "Attention": (attention, is_plain_attention),
    "BiasGelu": (_gelu, _always),
    "EmbedLayerNormalization": (_embed_layer_normalization, _is_plain_embedding),
    "FastGelu": (_fast_gelu, _always),
    "FusedMatMul": (_product, _is_plain_product),
    "Gelu": (_gelu, _always),
    "MultiHeadAttention": (multi_head_attention, is_plain_multi_head),
    "QuickGelu": (_quick_gelu, _always),
    "RotaryEmbedding": (rotary_embedding, is_plain_rotation),
    "SkipLayerNormalization": (_skip_layer_normalization, _is_plain_skip),
    "SkipSimplifiedLayerNormalization": (_skip_rms_normalization, _is_plain_skip),
}
FUSED = frozenset(f"{MICROSOFT}::{op}" for op in _KNOWN)
"""The operators, with their domain."""
FUSED_WRITERS = {f"{MICROSOFT}::{op}": write for op, (write, _) in _KNOWN.items()}
IS_PLAIN_FUSED = {f"{MICROSOFT}::{op}": plain for op, (_, plain) in _KNOWN.items()}
"""Those of which a node can be written."""
