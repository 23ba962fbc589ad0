"""A model as a protobuf without its big tensors, for onnx's C++ tools: small, quick, and never over the 2 GB limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import onnx
import onnx_ir as ir

from onnxq.graph.values import tensor_of

__all__ = ["SMALL", "adopt", "big_constants", "serialized", "skeleton"]

SMALL = 1024
"""Tensors of at most this many bytes stay in the skeleton: shapes, axes, scales that shape inference looks at."""


def skeleton(
    model: ir.Model, without: Mapping[ir.Node, ir.TensorProtocol] = MappingProxyType({})
) -> tuple[onnx.ModelProto, dict[str, ir.Value]]:
    """Serializes a model with its bigger top-level initializers turned into graph inputs.

    Args:
        model: left as it is.
        without: nodes that are turned into graph inputs, too, and what they give: see :func:`big_constants`.

    Returns:
        The protobuf, and the initializers left out, by name.
    """
    graph = model.graph
    small: list[ir.Value] = []
    big: dict[str, ir.Value] = {}
    extra: list[ir.Value] = []
    for value in graph.initializers.values():
        tensor = value.const_value
        if tensor is None or tensor.nbytes > SMALL:
            big[value.name or ""] = value
            if not value.is_graph_input():
                stand_in = ir.Value(name=value.name, type=value.type, shape=value.shape)
                if tensor is not None:
                    stand_in.type, stand_in.shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
                extra.append(stand_in)
        else:
            small.append(value)
    for node, tensor in without.items():
        shape = ir.Shape(tensor.shape.numpy())
        extra.append(ir.Value(name=node.outputs[0].name, type=ir.TensorType(tensor.dtype), shape=shape))
    nodes = [node for node in graph if node not in without] if without else None
    return serialized(model, [*graph.inputs, *extra], small, nodes), big


def big_constants(model: ir.Model) -> dict[ir.Node, ir.TensorProtocol]:
    """The Constant nodes of the main graph with big tensors, as an exporter may write weights; none for an output."""
    found = {}
    for node in model.graph:
        value = node.attributes.get("value") if node.op_type == "Constant" and node.domain == "" else None
        if value is None or value.is_ref() or value.type is not ir.AttributeType.TENSOR:
            continue
        tensor = tensor_of(value)
        if tensor.dtype is not ir.DataType.STRING and tensor.nbytes > SMALL and not node.outputs[0].is_graph_output():
            found[node] = tensor
    return found


def serialized(
    model: ir.Model,
    inputs: Sequence[ir.Value],
    initializers: Sequence[ir.Value],
    nodes: Sequence[ir.Node] | None = None,
) -> onnx.ModelProto:
    """A model as a protobuf, with other graph inputs and top-level initializers than its own.

    Args:
        model: left as it is.
        inputs: graph inputs.
        initializers: of the main graph; values of other models may stand for the model's own, by name.
        nodes: of the main graph; None: all of them.
    """
    graph = model.graph
    view = ir.GraphView(
        inputs,
        graph.outputs,
        nodes=graph if nodes is None else nodes,
        initializers=initializers,
        doc_string=graph.doc_string,
        opset_imports=dict(graph.opset_imports),
        name=graph.name or "graph",
        metadata_props=dict(graph.metadata_props),
    )
    proto = onnx.ModelProto()
    proto.ir_version = model.ir_version
    for domain, version in graph.opset_imports.items():
        proto.opset_import.add(domain=domain, version=version)
    ir.serde.serialize_graph_into(proto.graph, view)  # type: ignore[arg-type]
    for function in model.functions.values():
        ir.serde.serialize_function_into(proto.functions.add(), function)
    return proto


def adopt(model: ir.Model, proto: onnx.ModelProto, big: dict[str, ir.Value]) -> None:
    """Puts the graph of a skeleton that a tool has changed into ``model``, with the big tensors back in place.

    Metadata, producer and version of the model, and imports of domains that the tool forgot, stay as they were;
    names, types and shapes of graph inputs and outputs too.

    Args:
        model: changed in place.
        proto: what the tool made of ``skeleton(model)``.
        big: the initializers left out of the skeleton.
    """
    old = model.graph
    for tensor in list(proto.graph.initializer):
        if tensor.name in big:
            proto.graph.initializer.remove(tensor)
    new = ir.serde.deserialize_model(proto).graph
    by_name = {value.name: value for value in new.inputs}
    own = {value.name for value in old.inputs}
    tensors = {name: value.const_value for name, value in big.items()}
    inputs: list[ir.Value] = []
    for value in old.inputs:
        fresh = by_name[value.name]
        fresh.type, fresh.shape, fresh.doc_string = value.type, value.shape, value.doc_string
        fresh.metadata_props.update(value.metadata_props)
        fresh.meta.update(value.meta)
        inputs.append(fresh)
    stand_ins = [value for value in new.inputs if value.name not in own]
    new.inputs.clear()
    new.inputs.extend(inputs)
    for value in (*inputs, *stand_ins):
        if value.name in tensors and tensors[value.name] is not None:
            value.const_value = tensors[value.name]
            new.register_initializer(value)
    for before, after in zip(old.outputs, new.outputs, strict=True):
        if before.type is not None:
            after.type = before.type
        after.shape, after.doc_string = before.shape, before.doc_string
        after.metadata_props.update(before.metadata_props)
    for domain, version in old.opset_imports.items():
        new.opset_imports.setdefault(domain, version)
    new.name, new.doc_string = old.name, old.doc_string
    new.metadata_props.update(old.metadata_props)
    new.meta.update(old.meta)
    model.graph = new
