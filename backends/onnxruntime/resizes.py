"""A Resize that repeats elements, in integers: onnxruntime 1.32 takes .6 ns for each with channels last.

As integer convolutions have them, the channels of a position lie side by side: a row in which each position comes twice
is the row joined with itself channel by channel, and two such rows are one joined with itself. That takes .06 to .1 ns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.backends.onnxruntime.side_by_side import Writer, quantizer_alike, requantize, row_of, size_of, sizes_of
from onnxq.graph.edits import remove_nodes, rename_output
from onnxq.graph.namer import Namer
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import constant_array

if TYPE_CHECKING:
    from onnxq.plan import Plan

__all__ = ["repeats", "write_resizes"]

_INPUTS, _RANK = 3, 4
_Rounded = Callable[[NDArray[np.float64]], NDArray[np.float64]]
_ROUND: dict[str, _Rounded] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
}


def repeats(node: ir.Node) -> tuple[int, int] | None:
    """How often a Resize gives each element of a plane along its axes, where it does nothing but that."""
    data = node.inputs[0]
    if node.op_type != "Resize" or node.domain != "" or len(node.inputs) != _INPUTS or "axes" in node.attributes:
        return None
    scales = constant_array(node.inputs[2])
    if scales is None or scales.size != _RANK or sizes_of(data)[1] is None:
        return None
    whole = [round(float(scale)) for scale in scales]
    if whole != [float(scale) for scale in scales] or whole[:2] != [1, 1] or min(whole) < 1 or max(whole) < 2:
        return None
    if node.attributes.get_string("mode", "nearest") != "nearest" or not all(map(_picks, [node] * 2, whole[2:])):
        return None
    return whole[2], whole[3]


def _picks(node: ir.Node, times: int) -> bool:
    """Whether a Resize by a factor gives each element so often, one after the other."""
    mode = node.attributes.get_string("coordinate_transformation_mode", "half_pixel")
    rounds = _ROUND.get(node.attributes.get_string("nearest_mode", "round_prefer_floor"))
    if rounds is None or mode not in ("asymmetric", "half_pixel", "pytorch_half_pixel"):
        return False
    made = np.arange(4 * times)
    places = made / times if mode == "asymmetric" else (made + 0.5) / times - 0.5
    return bool((np.clip(rounds(places), 0, 3) == made // times).all())


def write_resizes(model: ir.Model, plan: Plan) -> None:
    """Repeat integers with channels last in place of each quantized Resize that does nothing else.

    Args:
        model: a rendered QDQ model, changed in place.
        plan: where it is quantized.
    """
    namer = Namer(model)
    for node in list(all_nodes(model)):
        times = repeats(node) if node.name in plan.quantized else None
        if times is not None and (quantizer := quantizer_alike(node)) is not None:
            _write(node, quantizer, times, namer)


def _write(node: ir.Node, quantizer: ir.Node, times: tuple[int, int], namer: Namer) -> None:
    data = node.inputs[0]
    assert data is not None
    batch, channels, height, width = sizes_of(data)
    assert channels is not None
    (down, across), floats = times, data.type
    writer = Writer(quantizer, str(node.name), str(node.outputs[0].name), namer)
    value = writer.put("Transpose", [data], (batch, height, width, channels), floats, perm=(0, 2, 3, 1))
    writer.name(value, node.name)
    value = writer.put("Concat", [value] * across, (batch, height, width, None), floats, axis=3)
    value = requantize(writer, value, quantizer)
    row = row_of(writer, data, width, across * channels)
    value = writer.put("Reshape", [value, row], (batch, height, None), floats)
    value = writer.put("Concat", [value] * down, (batch, height, None), floats, axis=2)
    value = requantize(writer, value, quantizer)
    rows, columns = height and height * down, width and width * across
    size = size_of(writer, data, (rows, columns), times, channels)
    value = writer.put("Reshape", [value, size], (batch, rows, columns, channels), floats)
    value = writer.put("Transpose", [value], (batch, channels, rows, columns), floats, perm=(0, 3, 1, 2))
    rename_output(value, node.outputs[0])
    remove_nodes([node])
