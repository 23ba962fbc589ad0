"""Functions that newer opsets have as one operator, written with the operators that they consist of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection

import numpy as np
import onnx_ir as ir

from onnxq.graph.edits import remove_nodes, rename_output
from onnxq.graph.namer import Namer
from onnxq.graph.note import Note
from onnxq.graph.passes.attention_chains import (
    attention,
    is_plain_attention,
    is_plain_normalization,
    is_plain_rotation,
    rms_normalization,
    rotary_embedding,
)
from onnxq.graph.passes.chain import Chain
from onnxq.graph.passes.fused_chains import FUSED, FUSED_WRITERS, IS_PLAIN_FUSED, erf_gelu, swish, tanh_gelu
from onnxq.graph.shapes import infer_shapes
from onnxq.graph.traverse import all_nodes, full_type
from onnxq.graph.values import constant_array

__all__ = ["COMPOSITE", "NEWEST", "OPSET_OF_FUSED", "can_be_written", "has_any", "write", "write_out"]

_EACH_CHANNEL = 21
"""Opset from which on a GroupNormalization has factors for each channel, not for each group."""
OPSET_OF_FUSED = 17
"""Opset that has all that fused operators consist of, LayerNormalization among it."""
_CHAINS = ("GroupNormalization", "Swish")
"""Operators for which targets have no kernel of their own, but such for their parts."""
NEWEST = frozenset({"Attention", "RMSNormalization", "RotaryEmbedding"})
"""Operators that the standard has since opset 23."""
COMPOSITE = NEWEST | FUSED
"""Operators for which some targets have a kernel of their own, and others such for their parts; with their domain where
they are not of the standard."""


def write_out(model: ir.Model, operators: Collection[str] = _CHAINS) -> list[Note]:
    """Write operators as chains, as older exporters do and targets know.

    That is every Swish and GroupNormalization by default: of a Swish they make SiLU, of which onnxruntime has a kernel,
    and integer ones for its parts; a GroupNormalization becomes an InstanceNormalization.

    Args:
        model: changed in place, shapes inferred, constants folded. Its tensors keep their names and numbers.
        operators: which.

    Returns:
        One note with their numbers, if any.
    """
    current, namer, done = model.opset_imports.get("", 0), Namer(model), Counter[str]()
    for node in list(all_nodes(model)):
        if full_type(node) in operators and can_be_written(node, current):
            done[full_type(node)] += 1
            write(node, current, namer)
    if not done:
        return []
    infer_shapes(model)
    return [Note("write_out", "", f"written out: {', '.join(f'{n} {op}' for op, n in sorted(done.items()))}")]


def has_any(model: ir.Model, operators: Collection[str]) -> bool:
    """Whether a model has nodes of some operators, which have their domain in front where it is not the standard's."""
    return any(full_type(node) in operators for node in all_nodes(model))


def can_be_written(node: ir.Node, opset: int) -> bool:
    """Whether an operator of an opset can be written as older ones here."""
    op, made = full_type(node), node.outputs[0]
    if op not in _WRITERS or (op in FUSED and opset < OPSET_OF_FUSED):
        return False
    if not node.inputs or node.inputs[0] is None or made.dtype is not ir.DataType.FLOAT:
        return False
    plain = _PLAIN.get(op)
    return plain is None or plain(node)


def write(node: ir.Node, opset: int, namer: Namer) -> None:
    """Put the chain in the place of an operator for which :func:`can_be_written` holds."""
    chain = Chain(node, opset, namer)
    made = _WRITERS[full_type(node)](chain)
    rename_output(made, node.outputs[0])
    remove_nodes([node])


def _gelu(chain: Chain) -> ir.Value:
    approximate = chain.node.attributes.get("approximate")
    tanh = approximate is not None and approximate.as_string() == "tanh"
    return tanh_gelu(chain, chain.x) if tanh else erf_gelu(chain, chain.x)


def _swish(chain: Chain) -> ir.Value:
    return swish(chain, 1.0)


def _is_plain_group_normalization(node: ir.Node) -> bool:
    """Whether a GroupNormalization can be written: its channels are known, its factors constant."""
    shape = node.inputs[0].shape if node.inputs[0] is not None else None
    ranked = shape is not None and len(shape) > 2 and isinstance(shape[1], int)
    return ranked and all(constant_array(value) is not None for value in node.inputs[1:])


def _group_normalization(chain: Chain) -> ir.Value:
    """Normalized as pictures of one channel a group, then scaled channel by channel: group by group below opset 21."""
    node, x = chain.node, chain.x
    assert x.shape is not None
    groups, rank = node.attributes.get_int("num_groups", 1), len(x.shape)

    split = chain.put("Reshape", x, chain.integers(0, groups, -1))
    each = chain.opset >= _EACH_CHANNEL
    ones, zeros = (chain.constant(name, np.full(groups, n, np.float32)) for name, n in (("ones", 1), ("zeros", 0)))
    factors = (ones, zeros) if each else [value for value in node.inputs[1:] if value is not None]
    epsilon = ir.AttrFloat32("epsilon", node.attributes.get_float("epsilon", 1e-5))
    normal = chain.put("InstanceNormalization", split, *factors, epsilon=epsilon)
    sizes = [dim for dim in x.shape[1:] if isinstance(dim, int)]
    known = len(sizes) == rank - 1
    shape = chain.integers(0, *sizes) if known else chain.put("Shape", x, dtype=ir.DataType.INT64)
    result = chain.put("Reshape", normal, shape)
    for op, value in (("Mul", node.inputs[1]), ("Add", node.inputs[2])) if each else ():
        array = constant_array(value)
        assert array is not None
        result = chain.put(op, result, chain.constant(op.lower(), array.reshape(-1, *[1] * (rank - 2))))
    return result


_WRITERS: dict[str, Callable[[Chain], ir.Value]] = {
    "Gelu": _gelu,
    "GroupNormalization": _group_normalization,
    "Attention": attention,
    "RMSNormalization": rms_normalization,
    "RotaryEmbedding": rotary_embedding,
    "Swish": _swish,
    **FUSED_WRITERS,
}
_PLAIN: dict[str, Callable[[ir.Node], bool]] = {
    "Attention": is_plain_attention,
    "GroupNormalization": _is_plain_group_normalization,
    "RMSNormalization": is_plain_normalization,
    "RotaryEmbedding": is_plain_rotation,
    **IS_PLAIN_FUSED,
}
"""Operators of which some nodes can be written."""
