"""Recurrent layers whose steps pnnx takes for samples.

It keeps one axis of every tensor for the batch, of which ncnn has none. That is the second of what a recurrent layer
reads, and the first of what almost all other operators read or give: where the first becomes the steps of a layer, the
layer runs over other axes, without a word.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxq.graph.values import constant_array, input_of, rank_of, size_along

__all__ = ["RECURRENT", "wrong_steps"]

RECURRENT = ("GRU", "LSTM", "RNN")
_WINDOWED = ("AveragePool", "Conv", "ConvTranspose", "GlobalAveragePool", "GlobalMaxPool", "MaxPool")
_OPEN = ("Cast", "Clip", "Concat", "Dropout", "Identity", "Relu", "Sigmoid", "Slice", "Tanh")
"""Operators of which pnnx knows no batch: it takes the one of what they read."""
_OF_SEVERAL = "behind a {} of several samples, frames for example,"
_STEPS_FIRST = "the steps of which are the first axis of what a {} gives,"


def wrong_steps(node: ir.Node) -> str | None:
    """What makes the batch of pnnx the steps of a recurrent layer, as part of a sentence; None where nothing does."""
    if node.op_type not in RECURRENT or node.attributes.get_int("layout", 0) != 0 or size_along(node.inputs[0], 0) == 1:
        return None
    pending: list[tuple[ir.Value | None, int | None]] = [(node.inputs[0], 0)]
    seen = set[tuple[ir.Value, int | None]]()
    while pending:
        value, axis = pending.pop()
        maker = value.producer() if value is not None and (value, axis) not in seen else None
        if maker is None or value is None or maker.domain != "":
            continue
        seen.add((value, axis))
        if axis is None:
            length = size_along(maker.inputs[0] if maker.inputs else None, 0)
            if maker.op_type in _WINDOWED and length is not None and length > 1:
                return _OF_SEVERAL.format(maker.op_type)
            pending += [(read, None) for read in maker.inputs]
        elif maker.op_type in _OPEN:
            pending += [(read, axis) for read in (maker.inputs if maker.op_type == "Concat" else maker.inputs[:1])]
        elif maker.op_type in ("Transpose", "Squeeze", "Unsqueeze", "Reshape", "Flatten"):
            pending.append((maker.inputs[0], _before(maker, axis)))
        elif axis == 0 and maker.op_type not in RECURRENT:
            return (_OF_SEVERAL if maker.op_type in _WINDOWED else _STEPS_FIRST).format(maker.op_type)
    return None


def _before(node: ir.Node, axis: int) -> int | None:
    """The axis that one behind a node is in front of it; None where it is none there, and behind a Reshape.

    That ends what pnnx knows of the batch, unless the operator in front of it has it say so anew.
    """
    data = node.inputs[0]
    rank = rank_of(data)
    if node.op_type == "Transpose":
        perm = node.attributes.get_ints("perm", ())
        return perm[axis] if perm else None if rank is None else rank - 1 - axis
    if node.op_type in ("Squeeze", "Unsqueeze"):
        axes = constant_array(input_of(node, 1))
        whole = rank if node.op_type == "Squeeze" or rank is None or axes is None else rank + axes.size
        if axes is None or whole is None:
            return None
        taken = {int(a) % whole for a in axes.reshape(-1)}
        kept = [k for k in range(whole) if k not in taken]
        if node.op_type == "Squeeze":
            return kept[axis]
        return kept.index(axis) if axis in kept else None
    return 0 if node.op_type == "Flatten" and axis == 0 and node.attributes.get_int("axis", 1) == 1 else None
