"""Which layers of a model compute with integers, or with weights stored as integers; read from the graph alone."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from onnx import TensorProto

__all__ = ["float_layers", "reads_integers"]

_LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM", "GRU", "RNN")
_MOVES = ("Transpose", "Reshape", "Identity", "Cast", "Flatten", "Squeeze", "Unsqueeze", "Mul", "Clip", "Slice")
_INTEGERS = ("DequantizeLinear", "FakeQuantize")
_STORED = (TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16, TensorProto.UINT16, TensorProto.INT4)


def float_layers(model: onnx.ModelProto) -> list[tuple[str, str]]:
    """Name and operator of every layer none of whose operands comes from integers, subgraphs included."""
    makers = {name: node for node in _nodes(model.graph) for name in node.output if name}
    stored = {tensor.name for tensor in model.graph.initializer if tensor.data_type in _STORED}
    return [
        (node.name, node.op_type)
        for node in _nodes(model.graph)
        if node.op_type in _LAYERS
        and node.domain in ("", "ai.onnx")
        and not any(_from_integers(name, makers, stored) for name in node.input)
    ]


def reads_integers(model: onnx.ModelProto, name: str) -> bool:
    """Whether an operand of the node of that name comes straight from integers."""
    makers = {tensor: node for node in _nodes(model.graph) for tensor in node.output if tensor}
    nodes = [node for node in _nodes(model.graph) if node.name == name]
    return any(makers[t].op_type in _INTEGERS for node in nodes for t in node.input if t in makers)


def _from_integers(name: str, makers: dict[str, onnx.NodeProto], stored: set[str]) -> bool:
    node = makers.get(name)
    while node is not None and node.op_type in _MOVES:
        if node.op_type == "Cast" and node.input[0] in stored:
            return True  # unpacked once, at load
        node = makers.get(node.input[0])
    return node is not None and node.op_type in _INTEGERS


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _nodes(inner)
