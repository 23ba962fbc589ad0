"""What operators meant in the opset they come from, where the converter of onnx forgets it.

A Resize below opset 11, and the Upsample that it was before, count from the first element: ``x / scale``, cut off where
it enlarges and rounded up where it shrinks, as onnxruntime computes them. The converter leaves out the attributes that
say so, and the defaults of later opsets place elements by their centres. A Hardmax below opset 13 looks at all axes
from its own on as one; the converter keeps the axis and looks at that one alone. A BatchNormalization below opset 14
is in training mode where it gives five outputs; the converter refuses them, and of fewer it forgets what they meant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper

__all__ = ["flatten_hardmax", "places_of", "say_places", "say_training", "shorten_training"]

_CENTRES = 11
"""The opset from which on a Resize says where its elements lie."""
_ONE_AXIS = 13
"""The opset from which on a Hardmax looks at one axis."""
_SAYS_TRAINING = 14
"""The opset from which on a BatchNormalization says that it is in training mode."""
_STATISTICS = 3
"""Outputs that it has in training mode since."""


def places_of(graph: onnx.GraphProto, opset: int, around: Mapping[str, onnx.TensorProto] | None = None) -> list[str]:
    """How each Resize and Upsample of a graph and those inside finds the nearest element, in the order of the nodes.

    Args:
        graph: not changed.
        opset: its version of the standard operators; none is found where it says so itself.
        around: constants of the graphs around it.

    Raises:
        ValueError: no later opset has what a node computes.
    """
    if opset >= _CENTRES:
        return []
    known = {**(around or {}), **{t.name: t for t in graph.initializer}}
    known |= {n.output[0]: a.t for n in graph.node if n.op_type == "Constant" for a in n.attribute if a.name == "value"}
    found: list[str] = []
    for node in graph.node:
        if node.domain == "" and node.op_type in ("Resize", "Upsample"):
            found.append(_nearest(node, known))
        for body in _bodies(node):
            found += places_of(body, opset, known)
    return found


def _bodies(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    return [a.g for a in sorted(node.attribute, key=lambda a: a.name) if a.HasField("g")]


def _nearest(node: onnx.NodeProto, known: Mapping[str, onnx.TensorProto]) -> str:
    """Which element is the nearest; factors that are computed are taken to enlarge."""
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    factors = np.asarray(attributes.get("scales", []), np.float64)
    if len(node.input) > 1 and node.input[1] in known:
        factors = onnx.numpy_helper.to_array(known[node.input[1]]).astype(np.float64)
    between = factors[(factors < 1) & ~np.isclose(1 / factors, np.round(1 / factors))]  # else on an element: no matter
    if not between.size or attributes.get("mode", b"nearest") != b"nearest":
        return "floor"
    if (factors > 1).any():
        raise ValueError(
            f"{node.op_type} {node.name or node.output[0]!r} enlarges along one axis and shrinks along another, to the "
            "nearest element, and later opsets round both alike"
        )
    return "ceil"


def say_places(graph: onnx.GraphProto, places: list[str]) -> None:
    """Writes at each Resize, in place, where its elements lie.

    The converter may give what it writes another name, and leaves it where it was.

    Args:
        graph: converted; changed in place, with the graphs inside.
        places: what :func:`places_of` found before it was.
    """
    if places:
        _say(graph, iter(places))


def _say(graph: onnx.GraphProto, places: Iterator[str]) -> None:
    for node in graph.node:
        if node.domain == "" and node.op_type == "Resize":
            said = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": next(places)}
            kept = [a for a in node.attribute if a.name not in said]
            linear = any(a.name == "mode" and a.s != b"nearest" for a in kept)
            del node.attribute[:]
            node.attribute.extend(kept)
            names = list(said)[:1] if linear else list(said)
            node.attribute.extend(onnx.helper.make_attribute(name, said[name]) for name in names)
        for body in _bodies(node):
            _say(body, places)


def flatten_hardmax(graph: onnx.GraphProto, opset: int) -> None:
    """Puts each Hardmax, in place, between a Flatten and a Reshape that make one axis of those it looks at.

    Args:
        graph: changed in place, with the graphs inside.
        opset: its version of the standard operators.
    """
    if opset >= _ONE_AXIS:
        return
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        if node.domain == "" and node.op_type == "Hardmax":
            nodes += _flat(node)
        else:
            nodes.append(onnx.NodeProto.FromString(node.SerializeToString()))
    for body in (a.g for node in nodes for a in node.attribute if a.HasField("g")):
        flatten_hardmax(body, opset)
    del graph.node[:]
    graph.node.extend(nodes)


def _flat(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
    name, source, result = node.name or node.output[0], node.input[0], node.output[0]
    flat, chosen, shape = (f"{result}__{what}" for what in ("flat", "chosen", "shape"))
    return [
        onnx.helper.make_node("Flatten", [source], [flat], f"{name}_flat", axis=axis),
        onnx.helper.make_node("Hardmax", [flat], [chosen], node.name, axis=1),
        onnx.helper.make_node("Shape", [source], [shape], f"{name}_shape"),
        onnx.helper.make_node("Reshape", [chosen, shape], [result], f"{name}_reshape"),
    ]


def shorten_training(graph: onnx.GraphProto, opset: int, target: int) -> set[str]:
    """Takes the last outputs, in place, of each BatchNormalization in training mode, where nothing reads them.

    Args:
        graph: changed in place, with the graphs inside.
        opset: its version of the standard operators.
        target: the version that it is converted to.

    Returns:
        The first output of each; nothing is done where both versions say it alike.
    """
    if not opset < _SAYS_TRAINING <= target:
        return set()
    found: set[str] = set()
    read = {value.name for value in graph.output}.union(*(_read(node) for node in graph.node))
    for node in graph.node:
        further = node.output[_STATISTICS:] if node.domain == "" and node.op_type == "BatchNormalization" else []
        if further and not read & set(further):
            del node.output[_STATISTICS:]
            found.add(node.output[0])
        for body in _bodies(node):
            found |= shorten_training(body, opset, target)
    return found


def _read(node: onnx.NodeProto) -> set[str]:
    inner = (_read(each) | {value.name for value in body.output} for body in _bodies(node) for each in body.node)
    return {*node.input}.union(*inner)


def say_training(graph: onnx.GraphProto, names: set[str]) -> None:
    """Writes at each BatchNormalization of these outputs, in place, that it is in training mode."""
    for node in graph.node:
        if node.op_type == "BatchNormalization" and node.output[0] in names:
            kept = [a for a in node.attribute if a.name != "training_mode"]
            del node.attribute[:]
            node.attribute.extend([*kept, onnx.helper.make_attribute("training_mode", 1)])
        for body in _bodies(node):
            say_training(body, names)
