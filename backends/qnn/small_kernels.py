"""Depthwise convolutions of small kernels and strides of 2, of which the HTP computes the last channels wrongly.

Of kernel 1 or 2 and strides of 2, the emulator computes the last one to four channels wrongly where so many are left
over 32, 64 and so on: of 4, 34, 36 and 68 channels 14 to 24 dB are left. Right are those of 5 to 8, 12, 20, 24, 32, 37
to 40, 44, 48 and 120 channels, and all of strides 1 or 3, or of kernel 3. Zeros around a kernel do not always help.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.graph.layer import replace_constant
from onnxq.graph.namer import Namer
from onnxq.graph.note import Note
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import OTHER_AXES, AnyArray, constant_array

__all__ = ["ungroup_small_kernels"]

_SMALL, _STRIDE = 2, 2
_BLOCK, _LEFT_OVER = 32, range(1, 5)
"""Channels that the HTP computes together, and as many left over as it computes wrongly."""


def ungroup_small_kernels(model: ir.Model) -> list[Note]:
    """Write depthwise convolutions that the HTP computes wrongly as plain ones, with zeros for all other channels.

    Args:
        model: changed in place; nodes and tensors keep their names, no number that the model computes changes.

    Returns:
        One note with the number of convolutions, if any.
    """
    namer, count = Namer(model), 0
    for node in all_nodes(model):
        array = _wrong(node)
        if array is None:
            continue
        weight = node.inputs[1]
        assert weight is not None and weight.dtype is not None
        channels = np.arange(array.shape[0])
        plain = np.zeros((array.shape[0], *array.shape[:1], *array.shape[2:]), array.dtype)
        plain[channels, channels] = array[:, 0]
        replace_constant(node, 1, plain, namer, f"{weight.name}_plain", weight.dtype)
        if (made := node.inputs[1]) is not None and made is not weight:
            made.meta[OTHER_AXES] = weight.name, tuple(range(plain.ndim))  # on the same grid, with the same channels
        node.attributes["group"] = ir.AttrInt64("group", 1)
        count += 1
    what = (
        f"{count} depthwise convolutions of small kernels are plain ones: the HTP computes their last channels wrongly"
    )
    return [Note("small_kernels", "", what)] if count else []


def _wrong(node: ir.Node) -> AnyArray | None:
    """The weight (C, 1, rows, columns) of a convolution that the HTP computes wrongly; None for all others."""
    array = constant_array(node.inputs[1]) if node.op_type == "Conv" and node.domain == "" else None
    if array is None or array.ndim != 4 or array.shape[1] != 1 or max(array.shape[2:]) > _SMALL:
        return None
    get = node.attributes
    count = array.shape[0]
    if count == 1 or get.get_int("group", 1) != count or count % _BLOCK not in _LEFT_OVER:
        return None
    return array if _STRIDE in get.get_ints("strides", ()) else None
