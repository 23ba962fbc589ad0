"""A last rewriting of a rendered model: what the HTP would make one operator of, and compute wrongly.

Of x * Sigmoid(x) in 16 bits QNN makes one operator. Where it computes a picture in strips of rows, behind a
convolution, a pool, a normalization or a product, rows of the result are then wrong, with 0 to 15 dB, on the emulator
of every HTP; which sizes that befalls is not known (12 and 24 rows of 8 columns, say, not 8 or 64 of 64). What has
fewer dimensions than a picture, or more, was right in all trials, and so was all in 8 bits. A YOLOv8n of 42.6 dB in
simulation has 42.5 there with the two apart, 20.8 as one.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxq.graph.namer import Namer
from onnxq.graph.traverse import all_nodes
from onnxq.plan import Plan
from onnxq.render.wiring import describe

__all__ = ["keep_apart"]

_PICTURE = 4
"""Dimensions."""
_SEEN_THROUGH = frozenset(
    {"QuantizeLinear", "DequantizeLinear", "Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"}
    | {"Relu", "Clip"}
)
"""What QNN moves or takes away before it looks for the two."""


def keep_apart(model: ir.Model, plan: Plan) -> None:
    """Put an Abs between a Sigmoid in 16 bits and the product with what it reads, in place.

    It changes no number, as none there is below 0, and QNN makes no one operator of the three. A pair of quantizers
    with the numbers of the one in front stands behind it.

    Args:
        model: a rendered QDQ model.
        plan: where it is quantized.
    """
    namer = Namer(model)
    made: dict[tuple[ir.Value, ir.Graph], ir.Value] = {}
    for node in list(all_nodes(model)):
        if node.op_type != "Mul" or node.domain or not isinstance(node.graph, ir.Graph):
            continue
        for position in (0, 1):
            gate, other = node.inputs[position], node.inputs[1 - position]
            if gate is None or other is None or not _is_gate_of(gate, other):
                continue
            if (gate, node.graph) not in made:
                made[gate, node.graph] = _behind_an_abs(gate, node, node.graph, namer)
            node.replace_input_with(position, made[gate, node.graph])
            break


def _is_gate_of(gate: ir.Value, other: ir.Value) -> bool:
    """Whether a tensor is the dequantized Sigmoid, in 16 bits, of another, a picture as far as is known."""
    quantizer = gate.producer()
    if quantizer is None or quantizer.op_type != "DequantizeLinear" or len(quantizer.inputs) < 3:
        return False
    zero = quantizer.inputs[2]
    if zero is None or zero.dtype is not ir.DataType.UINT16 or (gate.shape is not None and len(gate.shape) != _PICTURE):
        return False
    sigmoid = _origin(gate).producer()
    if sigmoid is None or sigmoid.op_type != "Sigmoid" or sigmoid.inputs[0] is None:
        return False
    return _origin(sigmoid.inputs[0]) is _origin(other)


def _origin(value: ir.Value) -> ir.Value:
    """The tensor that quantizers and data movement lead back to."""
    node = value.producer()
    while node is not None and node.op_type in _SEEN_THROUGH and node.inputs[0] is not None:
        value = node.inputs[0]
        node = value.producer()
    return value


def _behind_an_abs(gate: ir.Value, reader: ir.Node, graph: ir.Graph, namer: Namer) -> ir.Value:
    """A dequantized tensor once more, through an Abs in front of its reader."""
    before = gate.producer()
    assert before is not None
    integers, *numbers = before.inputs
    assert integers is not None and integers.dtype is not None
    name = namer.fresh(f"{integers.name}_abs")
    magnitude = ir.node("Abs", [gate], name=namer.node(name))
    describe(magnitude.outputs[0], name, ir.DataType.FLOAT, gate.shape)
    nodes = [magnitude]
    for op, dtype in (("Quantize", integers.dtype), ("Dequantize", ir.DataType.FLOAT)):
        node = ir.node(
            f"{op}Linear", [nodes[-1].outputs[0], *numbers], name=namer.node(f"{name}_{op}Linear"), domain=before.domain
        )
        describe(node.outputs[0], namer.fresh(f"{name}_{op.lower()}d"), dtype, gate.shape)
        nodes.append(node)
    graph.insert_before(reader, nodes)
    return nodes[-1].outputs[0]
