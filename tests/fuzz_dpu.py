"""What the DPU computes in place of a float model's Sigmoid, by AMD's documents; for the verdict on Vitis-AI.

``HardSigmoid(x) = clip(x * 2731 / 16384 + 1 / 2, 0, 1)``, its input at a fix position of 0 to 15, that is in steps of
2**-15 at least and within -128 to 127, for all that read it: ``quark/onnx/postprocess/simulation/simulate_dpu.py`` and
``postprocess/refinement/refine.py`` of amd-quark 0.13.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import onnx
from onnx import TensorProto, helper

from tests.fuzz import Case

__all__ = ["as_dpu", "dpu_steps"]

_HARD = "HardSigmoid"
_AS_FLOAT, _HELD = "__float32", "__held"
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)
_SLOPE = 2731 / 16384
_LEAST_STEP = 2.0**-15
_BOUNDS = (-128.0, 127.0)


def as_dpu(case: Case) -> Case:
    """The case with HardSigmoid in place of Sigmoid; in float32, what those of the main graph read is held."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    kinds = [info.type.tensor_type.elem_type for info in model.graph.input]
    kind = next((kind for kind in kinds if kind in _FLOATS), TensorProto.FLOAT)
    if kind == TensorProto.FLOAT:
        _hold(model.graph, model.opset_import[0].version)
    _replace(model.graph, kind)
    return replace(case, model=model)


def dpu_steps(model: onnx.ModelProto) -> dict[str, float]:
    """The smallest step of each tensor that a HardSigmoid of the main graph reads."""
    return {node.input[0].removesuffix(_AS_FLOAT): _LEAST_STEP for node in model.graph.node if node.op_type == _HARD}


def _hold(graph: onnx.GraphProto, opset: int) -> None:
    """Keep what a Sigmoid reads within the numbers of position 0, for all that read it."""
    held = {node.input[0] for node in graph.node if node.op_type == "Sigmoid"}
    given = held & {info.name for info in graph.input}
    bounds = [f"dpu{_AS_FLOAT}{k}" for k in range(2)] if opset >= 11 else []
    named: dict[str, Any] = {} if bounds else dict(zip(("min", "max"), _BOUNDS, strict=True))
    for name, bound in zip(bounds, _BOUNDS, strict=False):
        graph.initializer.append(helper.make_tensor(name, TensorProto.FLOAT, [], [bound]))
    nodes = [helper.make_node("Clip", [name, *bounds], [f"{name}{_HELD}"], **named) for name in sorted(given)]
    for node in graph.node:
        _reread(node, given)
        nodes.append(node)
        for position, name in enumerate(node.output):
            if name in held:
                node.output[position] = f"{name}__free"
                nodes.append(helper.make_node("Clip", [f"{name}__free", *bounds], [name], **named))
    made = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(made)


def _reread(node: onnx.NodeProto, given: set[str]) -> None:
    node.input[:] = [f"{name}{_HELD}" if name in given else name for name in node.input]
    for attribute in node.attribute:
        for inner in attribute.g.node if attribute.HasField("g") else ():
            _reread(inner, given)


def _replace(graph: onnx.GraphProto, kind: int) -> None:
    nodes = [made for node in graph.node for made in _written(node, kind)]
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _replace(attribute.g, kind)
    del graph.node[:]
    graph.node.extend(nodes)


def _written(node: onnx.NodeProto, kind: int) -> Iterable[onnx.NodeProto]:
    """A Sigmoid as a HardSigmoid, which onnxruntime has for float32 alone; any other node as it is."""
    if node.op_type != "Sigmoid":
        return [onnx.NodeProto.FromString(node.SerializeToString())]
    x, y = node.input[0], node.output[0]
    if kind == TensorProto.FLOAT:
        return [helper.make_node(_HARD, [x], [y], node.name, alpha=_SLOPE, beta=0.5)]
    return [
        helper.make_node("Cast", [x], [f"{x}{_AS_FLOAT}"], to=TensorProto.FLOAT),
        helper.make_node(_HARD, [f"{x}{_AS_FLOAT}"], [f"{y}{_AS_FLOAT}"], node.name, alpha=_SLOPE, beta=0.5),
        helper.make_node("Cast", [f"{y}{_AS_FLOAT}"], [y], to=kind),
    ]
