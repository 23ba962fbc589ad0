"""Mean pools that count their padding, with the padding in front of them as a Pad of zeros."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from onnxq.graph.edits import set_constant
from onnxq.graph.namer import Namer
from onnxq.graph.note import Note
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import SAME_NUMBERS

__all__ = ["padded_means"]


def _counts_padding(node: ir.Node) -> bool:
    """Whether a node is an AveragePool with explicit padding, all of which its means count as zeros."""
    get = node.attributes
    if node.op_type != "AveragePool" or node.domain != "" or not get.get_int("count_include_pad", 0):
        return False
    if get.get_int("ceil_mode", 0) or get.get_string("auto_pad", "NOTSET") != "NOTSET":
        return False
    return any(get.get_ints("pads", ()))


def padded_means(model: ir.Model, chosen: Callable[[ir.Node], bool]) -> list[Note]:
    """Take the padding out of each chosen AveragePool that counts it, into a Pad of zeros in front.

    That changes no number. Left are pools that round their number of windows up: what those count is another number.

    Args:
        model: changed in place. The tensor behind a Pad holds the numbers of the one in front, and zeros.
        chosen: which to write so.

    Returns:
        One note with the number of pools, if any.
    """
    count, namer = 0, Namer(model)
    for node in list(all_nodes(model)):
        graph, value = node.graph, node.inputs[0] if node.inputs else None
        if value is None or not isinstance(graph, ir.Graph) or not _counts_padding(node) or not chosen(node):
            continue
        pads = node.attributes.get_ints("pads", ())
        half = len(pads) // 2
        border = np.array([0, 0, *pads[:half], 0, 0, *pads[half:]], np.int64)
        constant = set_constant(graph, namer, f"{node.outputs[0].name}_pads", border)
        pad = ir.node("Pad", [value, constant], name=namer.node(f"{node.name}_Pad"))
        padded = pad.outputs[0]
        padded.name, padded.type = namer.fresh(f"{value.name}_padded"), value.type
        padded.meta[SAME_NUMBERS] = value.meta.get(SAME_NUMBERS, value.name)
        if value.shape is not None:
            more = (border[: half + 2] + border[half + 2 :]).tolist()
            sizes = zip(value.shape, more, strict=True)
            padded.shape = ir.Shape([n + m if isinstance(n, int) else None if m else n for n, m in sizes])
        graph.insert_before(node, [pad])
        node.replace_input_with(0, padded)
        del node.attributes["pads"]
        count += 1
    return (
        [Note("padded_means", "", f"{count} AveragePool nodes have their padding in a Pad in front")] if count else []
    )
