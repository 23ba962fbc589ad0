"""What Tengine gives in place of a float model's outputs, by the sources of its tool; to judge that target by.

``quant_tool_uint8`` gives a tensor that one node alone reads the numbers of that node's output where it is a Relu or
moves data (``quant_save_graph.cpp``; the operators are `_INHERIT`), also where the tensor is an output of the model:
what lies beyond the range of the node's output is cut off, as everything below 0 in front of a Relu.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.contract import infer
from tests.fuzzing.graphs import Case
from tests.fuzzing.scope import reads

__all__ = ["as_tengine"]

_INHERIT = frozenset({"Flatten", "Reshape", "Squeeze", "Clip", "Slice", "MaxPool", "Relu"})


def as_tengine(case: Case) -> Case:
    """The case with outputs cut off at the range that their tensors have in Tengine."""
    graph = case.model.graph
    inherited = {info.name: _whose(info.name, graph) for info in graph.output if _is_float(info)}
    made = {name for node in graph.node for name in node.output}
    held = {name: other for name, other in inherited.items() if other != name and name in made}
    if not held:
        return case
    model = onnx.ModelProto.FromString(case.model.SerializeToString())
    shown = onnx.ModelProto.FromString(case.model.SerializeToString())
    del shown.graph.output[:]
    shown.graph.output.extend(onnx.ValueInfoProto(name=name) for name in {*held.values()})
    ranges = {
        name: (
            min(0.0, *(float(a.min(initial=0)) for a in arrays)),
            max(0.0, *(float(a.max(initial=0)) for a in arrays)),
        )
        for name, arrays in infer(shown, case.feeds, optimize=False).items()
    }
    nodes = []
    for node in model.graph.node:
        nodes.append(node)
        for position, name in enumerate(node.output):
            if name in held:
                node.output[position] = f"{name}__whole"
                nodes.append(_clip(model, f"{name}__whole", name, ranges[held[name]]))
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(copies)
    return replace(case, model=model)


def _is_float(info: onnx.ValueInfoProto) -> bool:
    return bool(info.type.tensor_type.elem_type == TensorProto.FLOAT)


def _whose(name: str, graph: onnx.GraphProto) -> str:
    """The tensor whose numbers a tensor gets: its own, or those behind the node that alone reads it."""
    readers = _readers(name, _live(graph), {info.name for info in graph.output})
    if len(readers) != 1 or readers[0].op_type not in _INHERIT:
        return name
    return _whose(readers[0].output[0], graph)


def _live(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """The nodes that outputs depend on."""
    wanted, kept = {info.name for info in graph.output}, list[onnx.NodeProto]()
    for node in reversed(graph.node):
        if wanted & {*node.output}:
            kept.append(node)
            wanted |= {*reads(node)}
    return kept


def _readers(name: str, nodes: list[onnx.NodeProto], outputs: set[str]) -> list[onnx.NodeProto]:
    """What reads a tensor, itself or behind an Identity."""
    found = []
    for node in nodes:
        if name in reads(node):
            passed = node.op_type == "Identity" and node.output[0] not in outputs
            found += _readers(node.output[0], nodes, outputs) if passed else [node]
    return found


def _clip(model: onnx.ModelProto, name: str, result: str, bounds: tuple[float, float]) -> onnx.NodeProto:
    if model.opset_import[0].version < 11:
        return helper.make_node("Clip", [name], [result], min=bounds[0], max=bounds[1])
    names = [f"{name}_{what}" for what in ("min", "max")]
    for bound, number in zip(names, bounds, strict=True):
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(number, np.float32), bound))
    return helper.make_node("Clip", [name, *names], [result])
