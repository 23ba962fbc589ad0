"""Zero padding in front of a convolution, moved into the convolution's own ``pads``.

As PyTorch's "same" padding and TensorFlow's converters write it: ``Pad(x, pads) → Conv``; the convolution's own padding
may be called VALID, which is none (PyTorch's ``padding="valid"``). Exact.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxq.graph.edits import remove_nodes, replace_value
from onnxq.graph.note import Note
from onnxq.graph.traverse import all_graphs
from onnxq.graph.values import constant_array, input_of, only_reader

__all__ = ["fold_pad"]


def fold_pad(model: ir.Model) -> list[Note]:
    """Fold Pad nodes that feed one convolution.

    Args:
        model: changed in place.

    Returns:
        A note for every Pad before a Conv, done or left alone and why.
    """
    notes: list[Note] = []
    for graph in all_graphs(model):
        for node in list(graph):
            if node.op_type != "Conv" or node.domain != "" or node.inputs[0] is None:
                continue
            pad = node.inputs[0].producer()
            if pad is None or pad.op_type != "Pad" or pad.domain != "" or pad.graph is not node.graph:
                continue
            why = _fold(pad, node)
            notes.append(Note("fold_pad", pad.name or "", why or f"folded into '{node.name}'"))
    return notes


def _fold(pad: ir.Node, conv: ir.Node) -> str | None:
    """Fold one pair; the reason why not, or None."""
    source = pad.inputs[0]
    if source is None or only_reader(pad.outputs[0]) is not conv:
        return "not folded: its output is read elsewhere too"
    if pad.attributes.get_string("mode", "constant") != "constant":
        return "not folded: it does not pad with a constant"
    automatic = conv.attributes.get_string("auto_pad", "NOTSET")
    if automatic not in ("NOTSET", "VALID"):
        return "not folded: the convolution pads automatically"
    padded = _padded(pad, _spatial_rank(conv))
    if isinstance(padded, str):
        return padded
    none = [0] * len(padded)
    own = none if automatic == "VALID" else list(conv.attributes.get_ints("pads", none))
    own = [a + b for a, b in zip(own, padded, strict=True)]
    conv.attributes.pop("auto_pad", None)
    conv.attributes["pads"] = ir.AttrInt64s("pads", own)
    replace_value(pad.outputs[0], source)
    remove_nodes([pad])
    return None


def _padded(pad: ir.Node, rank: int | None) -> list[int] | str:
    """The zeros that a Pad adds before and after each spatial axis, or why a convolution cannot add them."""
    amounts = constant_array(input_of(pad, 1))
    if rank is None or amounts is None:
        return "not folded: its amounts are not constant"
    if input_of(pad, 2) is not None:
        fill = constant_array(pad.inputs[2])
        if fill is None or float(fill.reshape(-1)[0]) != 0.0:
            return "not folded: it does not pad with zero"
    axes = list(range(rank + 2))
    if input_of(pad, 3) is not None:
        given = constant_array(pad.inputs[3])
        if given is None:
            return "not folded: its axes are not constant"
        axes = [int(a) % (rank + 2) for a in given.reshape(-1)]
    flat = [int(a) for a in amounts.reshape(-1)]
    if len(flat) != 2 * len(axes):
        return "not folded: its amounts do not fit its input"
    before, after = [0] * (rank + 2), [0] * (rank + 2)
    for k, axis in enumerate(axes):
        before[axis], after[axis] = flat[k], flat[len(axes) + k]
    if any(before[:2]) or any(after[:2]) or min(before + after) < 0:
        return "not folded: it pads the batch or the channels, or cuts"
    return before[2:] + after[2:]


def _spatial_rank(conv: ir.Node) -> int | None:
    weight = conv.inputs[1]
    return len(weight.shape) - 2 if weight is not None and weight.shape is not None else None
