"""Depthwise convolutions of small kernels and strides of 2, of which the HTP computes the last channels wrongly.

Of kernel 1 or 2 and strides of 2, the emulator computes the last one to four channels wrongly where so many are left
over 32, 64 and so on: of 4, 34, 36 and 68 channels 14 to 24 dB are left. Right are those of 5 to 8, 12, 20, 24, 32, 37
to 40, 44, 48 and 120 channels, and all of strides 1 or 3, or of kernel 3. Zeros around a kernel do not always help.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxq.graph.note import Note
from onnxq.graph.passes.ungroup import ungroup
from onnxq.graph.values import AnyArray

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
    count = ungroup(model, _is_wrong)
    what = (
        f"{count} depthwise convolutions of small kernels are plain ones: the HTP computes their last channels wrongly"
    )
    return [Note("small_kernels", "", what)] if count else []


def _is_wrong(node: ir.Node, weight: AnyArray) -> bool:
    """Whether the HTP computes a convolution of the weight (C, 1, rows, columns) wrongly."""
    get, count = node.attributes, weight.shape[0]
    if weight.ndim != 4 or weight.shape[1] != 1 or max(weight.shape[2:]) > _SMALL:
        return False
    if get.get_int("group", 1) != count or count % _BLOCK not in _LEFT_OVER:
        return False
    return _STRIDE in get.get_ints("strides", ())
