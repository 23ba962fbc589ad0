"""A digest that tells whether two models are the same, so that statistics are not applied to another model."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import onnx_ir as ir

__all__ = ["model_digest"]


def model_digest(model: ir.Model) -> str:
    """SHA-256 over a model's structure, names and constants; the same from run to run and machine to machine.

    Documentation, metadata and the shapes noted for inner tensors do not count.

    Args:
        model: the model; external data is read once.

    Returns:
        64 hexadecimal digits.
    """
    sha = hashlib.sha256()
    _say(sha, "opset", sorted(model.opset_imports.items()))
    _graph(sha, model.graph)
    for identifier in sorted(model.functions):
        function = model.functions[identifier]
        _say(
            sha, "function", identifier, _names(function.inputs), _names(function.outputs), sorted(function.attributes)
        )
        for node in function:
            _node(sha, node)
    return sha.hexdigest()


def _say(sha: Any, *words: object) -> None:
    sha.update(repr(words).encode("utf-8", "surrogatepass"))


def _names(values: Iterable[ir.Value | None]) -> list[str | None]:
    return [None if value is None else value.name for value in values]


def _graph(sha: Any, graph: ir.Graph) -> None:
    for word, values in (("inputs", graph.inputs), ("outputs", graph.outputs)):
        _say(sha, word, [(v.name, str(v.type), None if v.shape is None else str(v.shape)) for v in values])
    for name in sorted(graph.initializers):
        _say(sha, "initializer", name)
        tensor = graph.initializers[name].const_value
        if tensor is not None:
            _tensor(sha, tensor)
    for node in graph:
        _node(sha, node)
    _say(sha, "end")


def _node(sha: Any, node: ir.Node) -> None:
    _say(sha, node.domain, node.op_type, node.overload, _names(node.inputs), _names(node.outputs))
    for name in sorted(node.attributes):
        attribute = node.attributes[name]
        _say(sha, name, attribute.type.name, attribute.ref_attr_name)
        if attribute.ref_attr_name:
            continue
        value = attribute.value
        if attribute.type == ir.AttributeType.GRAPH:
            _graph(sha, value)
        elif attribute.type == ir.AttributeType.GRAPHS:
            for inner in value:
                _graph(sha, inner)
        elif attribute.type == ir.AttributeType.TENSOR:
            _tensor(sha, value)
        elif attribute.type == ir.AttributeType.TENSORS:
            for tensor in value:
                _tensor(sha, tensor)
        elif attribute.type in (ir.AttributeType.SPARSE_TENSOR, ir.AttributeType.SPARSE_TENSORS):
            for proto in value if isinstance(value, (list, tuple)) else [value]:
                sha.update(proto.SerializeToString(deterministic=True))
        else:
            _say(sha, str(value) if attribute.type.name.startswith("TYPE_PROTO") else value)


def _tensor(sha: Any, tensor: ir.TensorProtocol) -> None:
    _say(sha, tensor.dtype.name, [str(dim) for dim in tensor.shape])
    if tensor.dtype == ir.DataType.STRING:
        _say(sha, tensor.numpy().tolist())
    else:
        sha.update(tensor.tobytes())
