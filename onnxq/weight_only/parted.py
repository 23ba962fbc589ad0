"""Attention of onnxruntime's own, whose kernel takes floats alone: a product with its weight as stored, and the rest.

One product with queries, keys and values in a row, a Split, and onnxruntime's MultiHeadAttention, whose kernel is that
of Attention behind the product: it adds the bias and takes masks, scale and what hides as they are. Keys and values of
before are one tensor in Attention, and two there.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.graph.edits import rename_output
from onnxq.graph.namer import Namer
from onnxq.graph.passes.chain import Chain
from onnxq.graph.passes.fused_heads import widths
from onnxq.graph.passes.fused_masks import is_plain_mask
from onnxq.graph.values import input_of, is_read
from onnxq.weight_only.why_float import shape_of

__all__ = ["can_be_parted", "part"]

_BIAS, _MASK, _PAST, _ADDED, _LENGTH = 2, 3, 4, 5, 6
_MOST_AXES = 3
_SAME = ("num_heads", "mask_filter_value", "scale", "unidirectional")
"""Attributes that both operators have, with the same defaults."""


def can_be_parted(node: ir.Node) -> bool:
    """Whether MultiHeadAttention computes what an Attention does behind the product with its weight.

    It turns no queries and keys (``do_rotary``), has no caches that are written in place, and knows no mask of the ends
    and the starts of all samples in a row.
    """
    weight, mask, past = input_of(node, 1), input_of(node, _MASK), input_of(node, _PAST)
    number = node.attributes.get_int
    if weight is None or number("do_rotary", 0) == 1 or input_of(node, _LENGTH) is not None:
        return False
    sizes, heads = widths(node, shape_of(weight)[-1]), number("num_heads", 0)
    if sizes[0] != sizes[1] or not heads or any(size % heads for size in sizes) or sum(sizes) != shape_of(weight)[-1]:
        return False
    if (past is not None or is_read(node, 1)) and sizes[1] != sizes[2]:
        return False
    short = mask is None or (mask.shape is not None and len(mask.shape) <= _MOST_AXES)
    return short and is_plain_mask(mask, node.inputs[0])


def part(node: ir.Node, product: ir.Node, namer: Namer) -> None:
    """Put MultiHeadAttention in the place of an Attention.

    Args:
        node: for which :func:`can_be_parted` holds; removed.
        product: of its input with its weight; put in front, its output without a name.
        namer: of the model.
    """
    graph, weight = node.graph, input_of(node, 1)
    assert isinstance(graph, ir.Graph) and weight is not None
    chain, name = Chain(node, 0, namer), node.name
    made = product.outputs[0]
    made.name, made.type = namer.fresh(f"{node.outputs[0].name}_product"), chain.x.type
    graph.insert_before(node, product)
    sizes = chain.integers(*widths(node, shape_of(weight)[-1]))
    split = ir.node("Split", [made, sizes], {"axis": -1}, num_outputs=3, name=namer.node(f"{name}_Split"))
    graph.insert_before(node, split)

    past, kept = input_of(node, _PAST), len(node.outputs) > 1 and is_read(node, 1)
    operands = [*split.outputs, *(input_of(node, index) for index in (_BIAS, _MASK, _ADDED))]
    first = ir.AttrInt64("axis", 0)
    if past is not None:
        for index in (0, 1):
            place = chain.constant("which", np.asarray(index, np.int64))
            operands.append(chain.put("Gather", past, place, axis=first))
    attributes = [ir.Attr(a.name, a.type, a.value) for key in _SAME if (a := node.attributes.get(key)) is not None]
    # with a past and without outputs for both, onnxruntime 1.32 attends to the new keys alone
    outputs = 3 if kept or past is not None else 1
    heads = ir.Node(node.domain, "MultiHeadAttention", operands, attributes, num_outputs=outputs)
    graph.insert_before(node, heads)
    for value, word in zip(
        (*split.outputs, *heads.outputs[1:]), ("query", "key", "value", "keys", "values"), strict=False
    ):
        value.name, value.type = namer.fresh(f"{node.outputs[0].name}_{word}"), chain.x.type
    if kept:
        apart = [chain.put("Unsqueeze", value, chain.integers(0)) for value in heads.outputs[1:]]
        rename_output(chain.put("Concat", *apart, axis=first), node.outputs[1])
    rename_output(heads.outputs[0], node.outputs[0])
    graph.remove(node, safe=True)
    node.name, heads.name = None, name
