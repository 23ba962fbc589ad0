"""What the DPU computes in place of a float model's Sigmoid and HardSwish, by AMD's documents; to judge Vitis-AI by.

``HardSigmoid(x) = clip(x * 2731 / 16384 + 1 / 2, 0, 1)``, its input at a fix position of 0 to 15, that is in steps of
2**-15 at least and within -128 to 127, for all that read it, its output at 7 at least; HardSwish is x times that:
``quark/onnx/postprocess/simulation/simulate_dpu.py`` and ``postprocess/refinement/refine.py`` of amd-quark 0.13. What
is float64 stays as it is, on the processor, and what no output depends on is not computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import onnx
from onnx import TensorProto, helper

from tests.fuzzing.graphs import Case
from tests.fuzzing.scope import kinds_of, reads

__all__ = ["as_dpu", "dpu_steps"]

_HARD = "HardSigmoid"
_WRITTEN = ("Sigmoid", "HardSwish")
_AS_FLOAT, _HELD, _GATE = "__float32", "__held", "__gate"
_HALF = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
_SLOPE = 2731 / 16384
_LEAST_READ, _LEAST_WRITTEN = 2.0**-15, 2.0**-7
_BOUNDS = (-128.0, 127.0)


def as_dpu(case: Case) -> Case:
    """The case with HardSigmoid in place of Sigmoid; in float32, what those of the main graph read is held."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    _remove_unread(model.graph)
    kinds = kinds_of(case.model)
    _hold(model.graph, model.opset_import[0].version, kinds)
    _replace(model.graph, kinds)
    return replace(case, model=model)


def dpu_steps(model: onnx.ModelProto) -> dict[str, float]:
    """The smallest step of each tensor that a HardSigmoid of the main graph reads or writes."""
    casts = {node.output[0]: node.input[0] for node in model.graph.node if node.op_type == "Cast"}
    gates = [node for node in model.graph.node if node.op_type == _HARD]
    written = {node.output[0].removesuffix(_AS_FLOAT): _LEAST_WRITTEN for node in gates}
    return written | {casts.get(node.input[0], node.input[0]): _LEAST_READ for node in gates}


def _remove_unread(graph: onnx.GraphProto) -> None:
    wanted, kept = {info.name for info in graph.output}, list[onnx.NodeProto]()
    for node in reversed(graph.node):
        if wanted & {*node.output}:
            kept.append(onnx.NodeProto.FromString(node.SerializeToString()))
            wanted |= {*reads(node)}
    del graph.node[:]
    graph.node.extend(reversed(kept))


def _is_gate(node: onnx.NodeProto) -> bool:
    """Whether a node is a HardSigmoid on the DPU, or has one in it."""
    if node.op_type != _HARD:
        return node.op_type in _WRITTEN
    given: dict[str, float] = {attribute.name: attribute.f for attribute in node.attribute}
    return abs(given.get("alpha", 0.2) - 1 / 6) < 1e-6 and abs(given.get("beta", 0.5) - 0.5) < 1e-6


def _hold(graph: onnx.GraphProto, opset: int, kinds: dict[str, int]) -> None:
    """Keep what a HardSigmoid reads within the numbers of position 0, for all that read it."""
    read = {node.input[0] for node in graph.node if _is_gate(node)}
    held = {name for name in read if kinds.get(name) == TensorProto.FLOAT}
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


def _replace(graph: onnx.GraphProto, kinds: dict[str, int]) -> None:
    nodes = [made for node in graph.node for made in _written(node, kinds)]
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _replace(attribute.g, kinds)
    del graph.node[:]
    graph.node.extend(nodes)


def _written(node: onnx.NodeProto, kinds: dict[str, int]) -> Iterator[onnx.NodeProto]:
    """A Sigmoid as a HardSigmoid, which onnxruntime has for float32 alone; a LeakyRelu with a slope in 256ths; any
    other node as it is."""
    if node.op_type == "LeakyRelu":
        alpha = next((attribute.f for attribute in node.attribute if attribute.name == "alpha"), 0.01)
        made = helper.make_node("LeakyRelu", node.input, node.output, node.name, alpha=round(alpha * 256) / 256)
        yield made
        return
    kind = kinds.get(node.input[0].removesuffix(_HELD)) if node.op_type in _WRITTEN else None
    if kind != TensorProto.FLOAT and kind not in _HALF:
        yield onnx.NodeProto.FromString(node.SerializeToString())
        return
    x, y = node.input[0], node.output[0]
    gate = f"{y}{_GATE}" if node.op_type == "HardSwish" else y
    if kind == TensorProto.FLOAT:
        yield helper.make_node(_HARD, [x], [gate], node.name, alpha=_SLOPE, beta=0.5)
    else:
        yield helper.make_node("Cast", [x], [f"{y}__read{_AS_FLOAT}"], to=TensorProto.FLOAT)
        yield helper.make_node(_HARD, [f"{y}__read{_AS_FLOAT}"], [f"{gate}{_AS_FLOAT}"], alpha=_SLOPE, beta=0.5)
        yield helper.make_node("Cast", [f"{gate}{_AS_FLOAT}"], [gate], to=kind)
    if gate != y:
        yield helper.make_node("Mul", [x, gate], [y])
