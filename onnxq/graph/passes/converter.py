"""onnx's version converter, with what it stumbles over put out of its way and mended behind it."""

from __future__ import annotations

from collections.abc import Mapping, Set

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import onnx.version_converter
import onnx_ir as ir

from onnxq.graph.passes.old_meaning import flatten_hardmax, places_of, say_places, say_training, shorten_training

__all__ = ["convert"]


def convert(proto: onnx.ModelProto, opset: int, types: Mapping[str | None, ir.DataType | None]) -> onnx.ModelProto:
    """The model in another version of the standard operators.

    Args:
        proto: may be changed.
        opset: the version.
        types: element types of the tensors, by name, where known.

    Raises:
        Exception: whatever onnx raises for what it cannot convert.
    """
    before = next((entry.version for entry in proto.opset_import if entry.domain == ""), opset)
    _ease(proto.graph)
    flatten_hardmax(proto.graph, before)
    places = places_of(proto.graph, before)
    training = shorten_training(proto.graph, before, opset)
    said = _said(proto.graph)
    shown = _show_outside(proto.graph)
    converted: onnx.ModelProto = onnx.version_converter.convert_version(proto, opset)
    _hide_again(converted.graph, set(shown))
    _tell_apart(converted.graph, set())
    _retype_pads(converted.graph, types)
    _unsay(converted.graph, said, opset)
    say_places(converted.graph, places)
    say_training(converted.graph, training)
    return converted


_NUMBERS = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}


def _ease(graph: onnx.GraphProto) -> None:
    """Rewrites what onnx's converter stumbles over: a pad value where none is padded, constants that are no tensors."""
    for node in graph.node:
        if node.op_type == "Constant" and node.domain == "":
            _as_tensor(node)
        modes = [a.s for a in node.attribute if a.name == "mode"]
        if node.op_type == "Pad" and node.domain == "" and modes and modes[0] != b"constant":
            kept = [a for a in node.attribute if a.name != "value"]
            del node.attribute[:]
            node.attribute.extend(kept)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _ease(attribute.g)


def _said(graph: onnx.GraphProto) -> dict[tuple[str, ...], set[str]]:
    """Outputs of a node → the names of its attributes, in a graph and those inside."""
    found = {tuple(node.output): {a.name for a in node.attribute} for node in graph.node}
    for body in (a.g for node in graph.node for a in node.attribute if a.HasField("g")):
        found |= _said(body)
    return found


def _unsay(graph: onnx.GraphProto, said: Mapping[tuple[str, ...], set[str]], opset: int) -> None:
    """Takes away, in place, attributes that the converter wrote though their value is the default.

    They are of newer operators: whoever reads the model may not know them.
    """
    for node in graph.node:
        before = said.get(tuple(node.output))
        if before is not None and node.domain == "" and onnx.defs.has(node.op_type):
            declared = onnx.defs.get_schema(node.op_type, opset).attributes
            kept = [a for a in node.attribute if a.name in before or not _is_default(a, declared)]
            del node.attribute[:]
            node.attribute.extend(kept)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _unsay(attribute.g, said, opset)


def _is_default(attribute: onnx.AttributeProto, declared: Mapping[str, onnx.defs.OpSchema.Attribute]) -> bool:
    default = declared[attribute.name].default_value if attribute.name in declared else None
    if default is None or default.type != attribute.type:
        return False
    return bool(onnx.helper.get_attribute_value(attribute) == onnx.helper.get_attribute_value(default))


def _show_outside(graph: onnx.GraphProto) -> dict[str, str]:
    """Puts an Identity behind each node that bodies of others read, and lets them read that.

    The converter stumbles where it replaces what a body reads from around it. ``graph`` is changed in place, with all
    graphs inside.

    Returns:
        The new names → the names read before.
    """
    inner = [a.g for node in graph.node for a in node.attribute if a.HasField("g")]
    read = {name for body in inner for name in _read(body)}
    found = {f"{name}__outside": name for node in graph.node for name in node.output if name in read}
    for body in inner:
        _rename_read(body, {name: new for new, name in found.items()})
    nodes = []
    for node in graph.node:
        names = [name for name in node.output if name in found.values()]
        nodes += [node, *(onnx.helper.make_node("Identity", [name], [f"{name}__outside"]) for name in names)]
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)
    for body in (a.g for node in graph.node for a in node.attribute if a.HasField("g")):
        found |= _show_outside(body)
    return found


def _hide_again(graph: onnx.GraphProto, shown: Set[str]) -> None:
    """Takes the nodes of :func:`_show_outside` out again, in place; what they read may have another name by now."""
    hidden = [n for n in graph.node if n.op_type == "Identity" and n.output[0] in shown]
    kept = [n for n in graph.node if not (n.op_type == "Identity" and n.output[0] in shown)]
    _rename_read(graph, {n.output[0]: n.input[0] for n in hidden})
    del graph.node[:]
    graph.node.extend(kept)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _hide_again(attribute.g, shown)


def _tell_apart(graph: onnx.GraphProto, outside: Set[str], depth: int = 0) -> None:
    """Renames in bodies, in place, what the converter made there under a name that it also gave around them."""
    made = [name for node in graph.node for name in node.output if name in outside]
    _rename_read(graph, names := {name: f"{name}__inside_{depth}" for name in made})
    for node in graph.node:
        node.output[:] = [names.get(name, name) for name in node.output]
    known = outside | {name for node in graph.node for name in node.output}
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _tell_apart(attribute.g, known - {""}, depth + 1)


def _read(graph: onnx.GraphProto) -> set[str]:
    """Names that the nodes of a graph and of those inside read."""
    inner = [a.g for node in graph.node for a in node.attribute if a.HasField("g")]
    return {name for node in graph.node for name in node.input}.union(*map(_read, inner))


def _rename_read(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _rename_read(attribute.g, names)


def _as_tensor(node: onnx.NodeProto) -> None:
    """Gives a Constant of one number or a list of them as the tensor it is; of those the converter knows no type."""
    for attribute in node.attribute:
        kind = _NUMBERS.get(attribute.name)
        if kind is not None:
            array = np.asarray(onnx.helper.get_attribute_value(attribute), kind)
            node.attribute[0].CopyFrom(onnx.helper.make_attribute("value", onnx.numpy_helper.from_array(array)))


def _retype_pads(graph: onnx.GraphProto, types: Mapping[str | None, ir.DataType | None]) -> None:
    """Gives pad values that onnx's converter made the type of what is padded; it makes all of them float32."""
    made = {t.name: t for t in graph.initializer}
    made |= {n.output[0]: n.attribute[0].t for n in graph.node if n.op_type == "Constant" and n.attribute}
    for node in graph.node:
        wanted = types.get(node.input[0]) if node.op_type == "Pad" and len(node.input) > 2 else None
        tensor = made.get(node.input[2]) if wanted is not None else None
        if wanted is not None and tensor is not None and tensor.data_type != int(wanted):
            array = onnx.numpy_helper.to_array(tensor).astype(wanted.numpy())
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _retype_pads(attribute.g, types)
