"""A model in a flat form that Python pickles: the graph of :mod:`onnx_ir` is a chain, deeper than pickle follows it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import onnx
import onnx_ir as ir

from onnxq.graph.skeleton import skeleton
from onnxq.graph.traverse import all_graphs
from onnxq.graph.values import array_of

__all__ = ["PackedModel", "packed", "unpacked"]


@dataclass(frozen=True, slots=True, eq=False)
class PackedModel:
    """A model without objects that hold each other.

    Attributes:
        proto: the model as a protobuf, its bigger initializers among the graph inputs.
        tensors: these initializers by name, of no file.
        initializers: names of all initializers of the main graph, in order.
        inputs: names of the model's own inputs.
        about: of the model: producer, version and the like, by attribute.
        meta: what passes have noted of graphs, nodes and values, by their place in the order of a walk.
    """

    proto: bytes
    tensors: Mapping[str, ir.TensorProtocol | None]
    initializers: tuple[str, ...]
    inputs: tuple[str, ...]
    about: Mapping[str, Any]
    meta: tuple[tuple[int, dict[str, Any]], ...]


_ABOUT = ("producer_name", "producer_version", "domain", "model_version", "doc_string")


def packed(model: ir.Model) -> PackedModel:
    """A model in its flat form, data in other files included; ``model`` is left as it is.

    Raises:
        ModelError: a tensor's data cannot be read.
    """
    proto, big = skeleton(model)
    made: dict[int, ir.TensorProtocol] = {}

    def in_memory(tensor: ir.TensorProtocol | None) -> ir.TensorProtocol | None:
        if tensor is not None and id(tensor) not in made:  # those that are one tensor stay one
            made[id(tensor)] = _in_memory(tensor)
        return None if tensor is None else made[id(tensor)]

    return PackedModel(
        proto=proto.SerializeToString(),
        tensors={name: in_memory(value.const_value) for name, value in big.items()},
        initializers=tuple(model.graph.initializers),
        inputs=tuple(value.name or "" for value in model.graph.inputs),
        about={**{name: getattr(model, name) for name in _ABOUT}, "metadata_props": dict(model.metadata_props)},
        meta=tuple(
            (place, {key: note for key, note in part.meta.items() if not isinstance(note, ir.TensorProtocol)})
            for place, part in enumerate(_parts(model))
            if part.meta
        ),
    )


def unpacked(flat: PackedModel) -> ir.Model:
    """The model of a flat form."""
    model = ir.serde.deserialize_model(onnx.ModelProto.FromString(flat.proto))
    graph = model.graph
    by_name = {**{value.name or "": value for value in graph.inputs}, **graph.initializers}
    own = [by_name[name] for name in flat.inputs]
    graph.inputs.clear()
    graph.inputs.extend(own)
    graph.initializers.clear()
    for name in flat.initializers:
        value = by_name[name]
        if name in flat.tensors:
            value.const_value = flat.tensors[name]
        graph.initializers[name] = value
    for name, what in flat.about.items():
        if name == "metadata_props":
            model.metadata_props.update(what)
        else:
            setattr(model, name, what)
    parts = list(_parts(model))
    for place, notes in flat.meta:
        parts[place].meta.update(notes)
    return model


def _in_memory(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    array = array_of(tensor)
    if tensor.dtype is ir.DataType.STRING:
        return ir.StringTensor(array, name=tensor.name)
    return ir.Tensor(array, tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=tensor.name)


def _parts(model: ir.Model) -> Iterator[ir.Graph | ir.Node | ir.Value]:
    """Everything that has notes, a value where it is made."""
    for graph in all_graphs(model):
        yield graph
        yield from graph.inputs
        yield from (value for value in graph.initializers.values() if not value.is_graph_input())
        for node in graph:
            yield node
            yield from node.outputs
