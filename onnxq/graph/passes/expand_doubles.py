"""Activations of float64 numbers by their definitions, which onnxruntime takes in some opsets only."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
import onnx.defs
import onnx_ir as ir
from onnx_ir.serde import deserialize_attribute

from onnxq.graph.edits import replace_nodes
from onnxq.graph.namer import Namer
from onnxq.graph.note import Note
from onnxq.graph.traverse import all_nodes

__all__ = ["FIRST", "LAST", "expand_doubles"]

FIRST, LAST = 16, 18
"""Opsets in which onnxruntime takes definitions; what they are made of changes in the next."""
_OPERATORS = frozenset(
    {"Elu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "PRelu", "Selu", "Softplus", "Softsign", "ThresholdedRelu"}
)


def expand_doubles(model: ir.Model) -> list[Note]:
    """Write activations of float64 numbers as the operators that onnx defines them by.

    onnxruntime 1.31 has kernels of these for float32 and float16 alone. For float64 it takes the definition where the
    opset is one that the definition is written for, 16 to 18; models of other opsets it does not load. So this comes
    before the opset is raised beyond 18.

    Args:
        model: changed in place; of an opset from `FIRST` to `LAST`, its tensors' types known. A node's tensor keeps its
            name, and what makes it then has the name of the node.

    Returns:
        One note with the number of nodes, if any.
    """
    found = [node for node in all_nodes(model) if _wanted(node)]
    namer = Namer(model)
    for node in found:
        _expand(node, model.opset_imports[""], namer)
    if not found:
        return []
    return [Note("expand_doubles", "", f"{len(found)} activations of float64 numbers by their definitions")]


def _wanted(node: ir.Node) -> bool:
    doubles = bool(node.inputs) and node.inputs[0] is not None and node.inputs[0].dtype == ir.DataType.DOUBLE
    return node.domain == "" and node.op_type in _OPERATORS and doubles


def _expand(node: ir.Node, opset: int, namer: Namer) -> None:
    """Put the body of an operator's definition in its place; what is defined in turn, too."""
    made = _body(node, opset, namer)
    made[-1].name = node.name
    replace_nodes([node], *made)
    for inner in made:
        if _wanted(inner):
            _expand(inner, opset, namer)


def _body(node: ir.Node, opset: int, namer: Namer) -> list[ir.Node]:
    """The nodes of the definition, the last making its output."""
    schema = onnx.defs.get_schema(node.op_type, opset)
    body = schema.function_body
    defaults = {name: a.default_value for name, a in schema.attributes.items()}
    given = {name: deserialize_attribute(default) for name, default in defaults.items() if default.name}
    given.update(node.attributes)
    values: dict[str, ir.Value | None] = dict(zip(body.input, node.inputs, strict=True))
    made = []
    for proto in body.node:
        attributes = [_attribute(a, given) for a in proto.attribute]
        op = proto.op_type
        if op == "CastLike":  # a Cast of a constant is computed once
            op, attributes = "Cast", [ir.AttrInt64("to", ir.DataType.DOUBLE.value)]
        inputs = [values[name] for name in (proto.input[:1] if op == "Cast" else proto.input)]
        new = ir.Node("", op, inputs, attributes, num_outputs=1, name=namer.node(f"{node.name}_{proto.output[0]}"))
        new.outputs[0].name = namer.fresh(f"{node.outputs[0].name}_{proto.output[0]}")
        if op not in ("Constant", "Less"):
            new.outputs[0].type = ir.TensorType(ir.DataType.DOUBLE)
        values[proto.output[0]] = new.outputs[0]
        made.append(new)
    return made


def _attribute(attribute: onnx.AttributeProto, given: Mapping[str, ir.Attr]) -> ir.Attr:
    """An attribute of a node in a definition, which may be one of the operator's own."""
    if not attribute.ref_attr_name:
        return deserialize_attribute(attribute)
    own = given[attribute.ref_attr_name]
    return ir.Attr(attribute.name, own.type, own.value)
