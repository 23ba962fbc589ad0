"""Which convolutions of a QDQ model become integer kernels of onnxruntime 1.32."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.graph.values import constant_array, input_of, only_reader

__all__ = ["BLOCK", "BYTES", "FOURS", "STORED", "is_unpacked", "quantizer_behind"]

BLOCK = 16
"""Channels that float kernels, and depthwise ones in integers, compute at once."""
FOURS = 4
"""Channels of which other integer kernels take several."""
BYTES = (ir.DataType.INT8, ir.DataType.UINT8)
"""Types of activations that there are kernels for."""
STORED = (*BYTES, ir.DataType.INT4, ir.DataType.UINT4)
"""Types of weights; those of 4 bits are unpacked to bytes when the model is loaded."""


def is_unpacked(value: ir.Value | None, types: tuple[ir.DataType, ...] = BYTES) -> bool:
    """Whether a DequantizeLinear makes a tensor of integers of some types, by numbers for all of it or by channel."""
    unpack = value.producer() if value is not None else None
    if unpack is None or unpack.op_type != "DequantizeLinear" or "block_size" in unpack.attributes:
        return False
    return unpack.inputs[0] is not None and unpack.inputs[0].dtype in types


def quantizer_behind(layer: ir.Node) -> ir.Node | None:
    """The QuantizeLinear that makes an integer kernel of a convolution with quantized data and weights.

    It follows directly, or a Relu that its zero point does the work of.
    """
    if not is_unpacked(layer.inputs[0]) or not is_unpacked(layer.inputs[1], STORED) or not _by_output(layer):
        return None
    reader = only_reader(layer.outputs[0])
    function = reader if reader is not None and reader.op_type == "Relu" else None
    if function is not None:
        reader = only_reader(function.outputs[0])
    if reader is None or reader.op_type != "QuantizeLinear" or reader.graph is not layer.graph:
        return None
    scale = constant_array(reader.inputs[1])
    if reader.outputs[0].dtype not in BYTES or (scale is not None and scale.size != 1):
        return None
    if function is not None:
        zero = constant_array(input_of(reader, 2))
        unsigned = reader.outputs[0].dtype is ir.DataType.UINT8
        return reader if unsigned and (zero is None or not zero.any()) else None
    return reader


def _by_output(layer: ir.Node) -> bool:
    """Whether quantized weights have one scale, or one for each channel out."""
    unpack = layer.inputs[1].producer() if layer.inputs[1] is not None else None
    scale = constant_array(unpack.inputs[1]) if unpack is not None else None
    axis = 1 if layer.op_type == "ConvTranspose" else 0
    given = unpack.attributes.get_int("axis", 1) if unpack is not None else None
    return scale is not None and (scale.size == 1 or given == axis)
