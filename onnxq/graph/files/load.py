"""Loading: a path, a ``ModelProto`` or an ``ir.Model`` becomes a private, sound ``ir.Model``."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onnxq.errors import ModelError
from onnxq.file_system import is_there
from onnxq.graph.files.external import attach_external_data, read_inner_tensors
from onnxq.graph.files.forms import check_forms
from onnxq.graph.files.map_types import refuse_maps
from onnxq.graph.files.one_form import settle
from onnxq.graph.files.origin import note_files
from onnxq.graph.files.other_kinds import other_kind
from onnxq.graph.files.qonnx import read_quant_nodes
from onnxq.graph.files.structure import check_definitions, check_structure, sort
from onnxq.graph.passes.constants import constant_tensor
from onnxq.graph.passes.runtime_operators import expand_runtime_operators
from onnxq.graph.traverse import with_subgraphs

__all__ = ["ModelSource", "load"]

ModelSource = str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model

logger = logging.getLogger("onnxq")


def load(source: ModelSource, *, again: bool = False) -> ir.Model:
    """Loads a model for us alone: the caller's file or object is never changed, whatever is done to the result.

    External data stays on disk and is read when needed; only its presence and length are checked. Constant nodes whose
    numbers are external become initializers. Sparse initializers and sparse constants become dense. Nodes out of order
    are sorted, with a warning in the log. Operators that onnxruntime alone has in the standard domain are written with
    those of ONNX, and quantizers of QONNX as onnxq's.

    Args:
        source: a path (``.onnx``, or any form that ``onnx.load`` knows by its suffix), a serialized model, a
            ``ModelProto``, or an ``ir.Model``. Links to models and to data files are followed.
        again: it was loaded before, and the log has what there is to say of it.

    Returns:
        A sound model: every name defined once and before its use.

    Raises:
        ModelError: it is none of these; the file is missing, is a folder, is cut short or is not ONNX; external data is
            missing, too short or outside the model's folder; a node reads an undefined name; a cycle; a name defined
            twice; no outputs; an input or output that holds maps; too few or too many inputs, or an attribute of
            another type than its operator's.
    """
    if isinstance(source, ir.Model):
        model = _from_ir(source)
    elif isinstance(source, onnx.ModelProto):
        proto = onnx.ModelProto()
        proto.CopyFrom(source)
        model = _from_proto(proto, [Path.cwd()])
    elif isinstance(source, (bytes, bytearray, memoryview)):
        model = _from_proto(_parse(bytes(source)), [Path.cwd()])
    elif not isinstance(source, (str, os.PathLike)):
        raise ModelError(
            f"an object of type {type(source).__name__} is not a model",
            hint="Give a path, the bytes of a serialized model, an onnx.ModelProto or an onnx_ir.Model",
        )
    else:
        if not os.fspath(source):
            raise ModelError("the name of the model is empty", hint="Give the path of an .onnx file")
        path = Path(source)
        proto = _read(path)
        folders = [path.absolute().parent]
        if path.resolve().parent not in folders:
            folders.append(path.resolve().parent)
        model = _from_proto(proto, folders)
        note_files(model, [], own=path)
    if not check_structure(model):
        if not again:
            logger.warning("nodes out of order: sorted")
        sort(model.graph)
        for function in model.functions.values():
            sort(function.graph)
    read_inner_tensors(model)
    check_forms(model)
    _mend_declarations(model)
    expand_runtime_operators(model)
    read_quant_nodes(model)
    return model


def _mend_declarations(model: ir.Model) -> None:
    """A declared size below zero, by which some exporters mean any size, becomes a free dimension.

    What onnxruntime accepts and ONNX does not is mended: a graph without a name gets one, and a Constant that is
    declared with another shape than it holds, as by onnxruntime-genai's builder, the one that it holds.
    """
    for graph in with_subgraphs(model.graph):
        graph.name = graph.name or "graph"
        for value in (*graph.inputs, *(output for node in graph for output in node.outputs)):
            sizes = value.shape
            if sizes is not None and any(isinstance(size, int) and size < 0 for size in sizes):
                value.shape = ir.Shape([None if isinstance(size, int) and size < 0 else size for size in sizes])
        for node in graph:
            if (node.domain, node.op_type) == ("", "Constant") and node.outputs[0].shape is not None:
                held = constant_tensor(node, node.outputs[0].name or "")
                if held is not None and not node.outputs[0].is_graph_output():
                    node.outputs[0].shape = ir.Shape(held.shape.numpy())


def _read(path: Path) -> onnx.ModelProto:
    where = f"'{path}'"
    if not is_there(path, ModelError):
        hint = "The link leads nowhere" if path.is_symlink() else "Check the path"
        raise ModelError("no such file", where=where, hint=hint)
    if path.is_dir():
        found = sorted(child.name for child in path.glob("*.onnx"))
        hint = f"Give one of its files: {', '.join(found[:5])}" if found else "Give the path of an .onnx file"
        raise ModelError("this is a folder, not a model", where=where, hint=hint)
    try:
        proto = onnx.load(path, load_external_data=False)
    except OSError as error:
        raise ModelError(f"cannot be read: {error.strerror or error}", where=where) from error
    except Exception as error:  # protobuf, its text and its JSON form raise errors of their own kinds
        _refuse_other_kind(path)
        raise ModelError(
            f"this is not an ONNX file, or it is cut short ({error})",
            where=where,
            hint=f"It has {path.stat().st_size} bytes; compare with the original",
        ) from error
    if not proto.HasField("graph"):
        _refuse_other_kind(path)
    _require_graph(proto, where)
    return proto


def _refuse_other_kind(path: Path) -> None:
    kind = other_kind(path)
    if kind is not None:
        raise ModelError(f"this is not an ONNX file, but {kind[0]}", where=f"'{path}'", hint=kind[1])


def _parse(source: bytes) -> onnx.ModelProto:
    where = "the bytes given as a model"
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(source)
    except Exception as error:  # protobuf's own
        raise ModelError(f"they are not a serialized ONNX model, or are cut short ({error})", where=where) from error
    _require_graph(proto, where)
    return proto


def _require_graph(proto: onnx.ModelProto, where: str) -> None:
    if not proto.HasField("graph") or not (proto.ir_version or proto.opset_import or proto.graph.node):
        raise ModelError("this is not an ONNX model: it holds no graph", where=where)


def _check_fields(message: Any) -> None:
    """Raises ModelError for an attribute without a type, or a text that is no UTF-8: neither could be written again."""
    if isinstance(message, onnx.AttributeProto) and not message.type and not message.ref_attr_name:
        raise ModelError("it has no type", where=f"attribute {message.name!r}", hint="The file is damaged")
    for field, value in _tensor_fields(message) if isinstance(message, onnx.TensorProto) else message.ListFields():
        if field.type == field.TYPE_STRING:
            texts = [value] if isinstance(value, (str, bytes)) else value
            for text in texts:
                if isinstance(text, bytes):
                    raise ModelError(f"{field.name} {text!r} is not UTF-8 text", where="invalid model")
        elif field.type == field.TYPE_MESSAGE:
            for inner in [value] if hasattr(value, "ListFields") else value:
                _check_fields(inner)


def _tensor_fields(tensor: onnx.TensorProto) -> Iterator[tuple[Any, Any]]:
    """Fields of a tensor that hold text or messages: listing all of them would copy its numbers."""
    for field in tensor.DESCRIPTOR.fields:
        if field.type in (field.TYPE_STRING, field.TYPE_MESSAGE):
            value = getattr(tensor, field.name)
            if isinstance(value, (str, bytes)) or not hasattr(value, "ListFields") or tensor.HasField(field.name):
                yield field, value


def _from_proto(proto: onnx.ModelProto, folders: list[Path]) -> ir.Model:
    _check_fields(proto)
    check_definitions(proto.graph)
    refuse_maps(proto.graph)
    _densify(proto)
    try:
        model = ir.serde.deserialize_model(proto)
    except Exception as error:  # onnx-ir wraps whatever it meets
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise ModelError(f"malformed: {cause}", where="invalid model") from error
    note_files(model, attach_external_data(model, folders))
    settle(model)
    return model


def _densify(proto: onnx.ModelProto) -> None:
    """Turns sparse initializers and sparse constants into dense ones: onnx-ir would drop the former."""
    stack = [proto.graph]
    node_lists = [function.node for function in proto.functions]
    while stack or node_lists:
        if stack:
            graph = stack.pop()
            for sparse in graph.sparse_initializer:
                graph.initializer.append(_dense(sparse))
            del graph.sparse_initializer[:]
            node_lists.append(graph.node)
        for node in node_lists.pop():
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    stack.append(attribute.g)
                stack.extend(attribute.graphs)
                if node.op_type == "Constant" and attribute.name == "sparse_value":
                    dense = _dense(attribute.sparse_tensor)
                    attribute.Clear()
                    attribute.name, attribute.type = "value", onnx.AttributeProto.TENSOR
                    attribute.t.CopyFrom(dense)


def _dense(sparse: onnx.SparseTensorProto) -> onnx.TensorProto:
    """The dense form of a sparse tensor: indices are linear, (nnz,), or coordinates, (nnz, rank)."""
    name = sparse.values.name
    try:
        values = onnx.numpy_helper.to_array(sparse.values)
        indices = onnx.numpy_helper.to_array(sparse.indices)
        dense = np.zeros(tuple(sparse.dims), dtype=values.dtype)
        if indices.ndim == 1:
            dense.reshape(-1)[indices] = values
        else:
            dense[tuple(indices.T)] = values
    except (ValueError, IndexError) as error:
        raise ModelError(f"malformed sparse tensor: {error}", where=f"tensor '{name}'") from error
    return onnx.numpy_helper.from_array(dense, name)


def _from_ir(source: ir.Model) -> ir.Model:
    in_order = check_structure(source)
    if in_order:
        model = source.clone()
    else:  # onnx-ir clones sorted graphs only
        tensors = [value.const_value for graph in with_subgraphs(source.graph) for value in graph.initializers.values()]
        model = ir.serde.deserialize_model(ir.serde.serialize_model(source))
        values = (value for graph in with_subgraphs(model.graph) for value in graph.initializers.values())
        for value, tensor in zip(values, tensors, strict=True):
            value.const_value = tensor
        model.graph.meta.update(source.graph.meta)
    files: set[Path] = set()
    for graph in with_subgraphs(model.graph):
        for value in (*graph.inputs, *(v for node in graph for v in node.outputs), *graph.initializers.values()):
            value.type = _copy_type(value.type)
        for value in graph.initializers.values():
            if value.const_value is not None:
                value.const_value = _own(value.const_value)
                if isinstance(value.const_value, ir.ExternalTensor):
                    files.add(Path(value.const_value.path))
    note_files(model, files)
    settle(model)
    return model


def _copy_type(kind: ir.TypeProtocol | None) -> ir.TypeProtocol | None:
    """A copy of a type, which onnx-ir lets two models share though it can be changed."""
    if isinstance(kind, (ir.TensorType, ir.SparseTensorType)):
        return type(kind)(kind.dtype, denotation=kind.denotation)
    if isinstance(kind, (ir.SequenceType, ir.OptionalType)):
        inner = _copy_type(kind.elem_type)
        return type(kind)(inner, denotation=kind.denotation) if inner is not None else kind
    return kind


def _own(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """A tensor object of our own over the same data: renaming a value renames its tensor object too."""
    if isinstance(tensor, ir.ExternalTensor):
        path = Path(tensor.path)
        if not path.is_file():
            raise ModelError(f"its external data file '{path}' is missing", where=f"tensor '{tensor.name}'")
        return ir.ExternalTensor(
            str(path.resolve()),
            tensor.offset,
            tensor.length,
            tensor.dtype,
            shape=tensor.shape,
            name=tensor.name,
            metadata_props=dict(tensor.metadata_props),
        )
    if tensor.dtype == ir.DataType.STRING:
        return ir.StringTensor(tensor.numpy(), shape=tensor.shape, name=tensor.name)  # type: ignore[arg-type]
    kept = dict(tensor.metadata_props)
    return ir.LazyTensor(lambda: tensor, tensor.dtype, tensor.shape, name=tensor.name, metadata_props=kept)  # type: ignore[arg-type]
