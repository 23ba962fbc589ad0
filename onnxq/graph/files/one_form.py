"""One form for what a model file may say in several ways: the standard domain, and the numbers of tensors."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir

from onnxq.errors import ModelError
from onnxq.graph.traverse import with_subgraphs

__all__ = ["settle"]


def settle(model: ir.Model) -> None:
    """Names the standard domain ``""`` and stores each tensor in one form, whatever field it came in, by itself.

    onnx-ir itself names the domain of nodes and functions so, ``"ai.onnx"`` as well.

    Args:
        model: as it was read; changed in place.

    Raises:
        ModelError: an initializer has no type, or numbers that do not fit its type and shape.
    """
    for imports in (model.graph.opset_imports, *(function.opset_imports for function in model.functions.values())):
        if "ai.onnx" in imports:
            version = imports.pop("ai.onnx")
            imports[""] = max(imports.get("", 0), version)
    for graph in with_subgraphs(model.graph):
        for value in graph.initializers.values():
            tensor = value.const_value
            if isinstance(tensor, ir.serde.TensorProtoTensor):
                value.const_value = _plain(tensor)
    owners: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for node in (node for owner in owners for node in owner.all_nodes()):
        for name, attr in list(node.attributes.items()):
            if isinstance(attr.value, ir.serde.TensorProtoTensor):
                node.attributes[name] = ir.AttrTensor(name, _apart(attr.value), doc_string=attr.doc_string)


def _plain(tensor: ir.serde.TensorProtoTensor) -> ir.TensorProtocol:
    if tensor.dtype == ir.DataType.STRING:
        return _apart(tensor)
    if tensor.dtype is ir.DataType.UNDEFINED:
        raise ModelError("it has no type", where=f"tensor '{tensor.name}'")
    if tensor.raw.HasField("raw_data"):
        data = tensor.raw.raw_data  # copied at each look at it
        if len(data) != tensor.nbytes:
            raise ModelError(
                f"its type and shape need {tensor.nbytes} bytes, it has {len(data)}", where=f"tensor '{tensor.name}'"
            )
        return _apart(tensor, data)
    try:
        array = tensor.numpy()
    except (ValueError, TypeError, AssertionError) as error:  # onnx-ir asserts that type and field fit
        raise ModelError(
            f"its data does not fit its type and shape: {error}", where=f"tensor '{tensor.name}'"
        ) from error
    return ir.Tensor(array, dtype=tensor.dtype, name=tensor.name, doc_string=tensor.doc_string)


def _apart(tensor: ir.serde.TensorProtoTensor, data: bytes | None = None) -> ir.TensorProtocol:
    """A tensor by itself. One of a protobuf keeps all of that in memory, and copies its numbers whenever they are read.

    One whose numbers are packed, text, or not what its type and shape say, becomes a protobuf of its own.

    Args:
        tensor: of a protobuf.
        data: its ``raw_data``, where that was looked at.
    """
    raw, kind = tensor.raw, tensor.dtype
    whole = kind not in (ir.DataType.UNDEFINED, ir.DataType.STRING) and kind.bitwidth >= 8
    if whole and data is None and raw.HasField("raw_data"):
        data = raw.raw_data
    if whole and data is not None and len(data) == tensor.nbytes:
        array = np.frombuffer(data, kind.numpy().newbyteorder("<")).reshape(tuple(raw.dims))
        properties = dict(tensor.metadata_props)
        return ir.Tensor(array, dtype=kind, name=tensor.name, doc_string=tensor.doc_string, metadata_props=properties)
    own = onnx.TensorProto()
    own.CopyFrom(raw)
    return ir.serde.TensorProtoTensor(own)
