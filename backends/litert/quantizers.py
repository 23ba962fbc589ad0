"""QuantizeLinear and DequantizeLinear: what integers are there already, or an operator of their own."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.backends.litert.codes import grid_of
from onnxq.backends.litert.placed import Placed, RefusedError
from onnxq.backends.litert.translation import Translation

__all__ = ["dequantize", "quantize"]


def quantize(t: Translation, node: ir.Node) -> None:
    """A QuantizeLinear: the integers that its producer has written, or a QUANTIZE."""
    value, grid = node.inputs[0], grid_of(node)
    if t.numbers(value) is not None:
        raise RefusedError("it quantizes a constant")
    given = t.placed(value) if value is not None else None
    if given is None:
        raise RefusedError("what it reads is not translated")
    if len(grid.scale) != 1:
        raise RefusedError("activations have one scale in TensorFlow Lite")
    t.place(node.outputs[0], t.requantized(given, grid, node.outputs[0].name or ""))


def dequantize(t: Translation, node: ir.Node) -> None:
    """A DequantizeLinear: whoever reads it reads the integers, or asks for floats."""
    if t.stored(node.outputs[0]) is not None:
        return
    given = t.placed(node.inputs[0]) if node.inputs[0] is not None else None
    if given is None:
        raise RefusedError("what it reads is not translated")
    grid = grid_of(node)
    known = t.flat.tensors[given.index].grid
    if known is None:  # integers that the model is given
        t.flat.set_grid(given.index, grid)
    elif known != grid:
        raise RefusedError("it takes integers for others than they were quantized to")
    t.place(node.outputs[0], Placed(given.index, given.shape, given.order, given.dtype, grid))
