"""Data files beside a model: found and measured before any work starts, read only when needed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import onnx_ir as ir

from onnxq.errors import ModelError
from onnxq.graph.edits import remove_nodes, replace_by_constant
from onnxq.graph.skeleton import SMALL
from onnxq.graph.traverse import with_subgraphs
from onnxq.graph.values import tensor_of

__all__ = ["attach_external_data", "read_inner_tensors"]


def _locate(location: str, folders: list[Path], where: str) -> Path:
    """The file that ``location`` names in the first of ``folders`` that has it.

    The name must stay inside the folder; a symbolic link there is followed wherever it leads.
    """
    normal = os.path.normpath(location) if location else ""
    if not normal or os.path.isabs(normal) or normal.split(os.sep)[0] == os.pardir:
        raise ModelError(
            f"its external data '{location}' lies outside the model's folder",
            where=where,
            hint="Put the data file beside the model and name it by a relative path",
        )
    for folder in folders:
        if (folder / normal).is_file():
            return (folder / normal).resolve()
    raise ModelError(
        f"its external data file '{location}' is missing in '{folders[0]}'",
        where=where,
        hint="Copy the data file beside the model, under the name it had when the model was saved",
    )


def _check_external_tensor(tensor: ir.ExternalTensor, path: Path) -> None:
    """Checks that the file holds all the bytes that the tensor needs.

    Raises:
        ModelError: it does not; the message gives the bytes needed and the bytes there.
    """
    where = f"tensor '{tensor.name}'"
    if tensor.dtype is ir.DataType.UNDEFINED:
        raise ModelError("it has external data but no type", where=where)
    offset, need = tensor.offset or 0, tensor.nbytes
    if tensor.length is not None and tensor.length != need:
        raise ModelError(
            f"its external data entry says {tensor.length} bytes, its type and shape need {need}", where=where
        )
    have = path.stat().st_size
    if offset < 0 or offset + need > have:
        raise ModelError(
            f"its external data needs {need} bytes at offset {offset} of '{path}', which has {have} bytes",
            where=where,
            hint="The data file is cut short or belongs to another model: copy it again",
        )


def _attach(tensor: ir.ExternalTensor, folders: list[Path], used: set[Path]) -> ir.TensorProtocol:
    path = _locate(os.fspath(tensor.location), folders, f"tensor '{tensor.name}'")
    _check_external_tensor(tensor, path)
    used.add(path)
    # An empty base_dir and an absolute location: onnx-ir's own checks would refuse links and hard links.
    attached = ir.ExternalTensor(
        str(path),
        tensor.offset,
        tensor.nbytes,
        tensor.dtype,
        shape=ir.Shape(tensor.shape.numpy()),
        name=tensor.name,
        doc_string=tensor.doc_string,
        metadata_props=dict(tensor.metadata_props),
    )
    if attached.nbytes > SMALL:
        return attached
    array = attached.numpy().copy()  # shapes and axes, which shape inference looks at
    attached.release()
    return ir.Tensor(array, dtype=attached.dtype, name=attached.name, doc_string=attached.doc_string)


def _graphs(model: ir.Model) -> Iterator[ir.Graph]:
    yield from with_subgraphs(model.graph)
    for function in model.functions.values():
        yield from with_subgraphs(function.graph)


def attach_external_data(model: ir.Model, folders: list[Path]) -> set[Path]:
    """Points every external tensor at its file, without reading it; those of 1 KiB and less are read.

    Args:
        model: changed in place.
        folders: where data files may lie, in order of preference.

    Returns:
        The data files, links followed.

    Raises:
        ModelError: a file is missing, outside the folder or too short.
    """
    used: set[Path] = set()
    for graph in list(_graphs(model)):
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = _attach(value.const_value, folders, used)
        for node in graph:
            for name, attr in list(node.attributes.items()):
                if not attr.is_ref() and attr.type == ir.AttributeType.TENSOR:
                    tensor = tensor_of(attr)
                    if isinstance(tensor, ir.ExternalTensor):
                        node.attributes[name] = ir.AttrTensor(name, _attach(tensor, folders, used))
    return used


def read_inner_tensors(model: ir.Model) -> None:
    """Reads the external tensors of attributes, subgraphs and functions: onnx's tools take none of them apart.

    They are mapped, not copied. Those of Constant nodes of the main graph become initializers, which stay external,
    unless they make a graph output.

    Args:
        model: changed in place, its external tensors attached.
    """
    for graph in list(_graphs(model)):
        main = graph is model.graph
        for value in graph.initializers.values():
            if not main and isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = _mapped(value.const_value)
        lifted: list[ir.Node] = []
        for node in graph:
            for name, attr in list(node.attributes.items()):
                if attr.is_ref() or attr.type != ir.AttributeType.TENSOR:
                    continue
                tensor = tensor_of(attr)
                if not isinstance(tensor, ir.ExternalTensor):
                    continue
                made = node.outputs[0]
                if main and node.op_type == "Constant" and node.domain == "" and not made.is_graph_output():
                    tensor.name = made.name or ""
                    replace_by_constant(made, tensor, graph)
                    lifted.append(node)
                else:
                    node.attributes[name] = ir.AttrTensor(name, _mapped(tensor))
        remove_nodes(lifted)


def _mapped(tensor: ir.ExternalTensor) -> ir.TensorProtocol:
    return ir.Tensor(
        tensor.numpy(),
        dtype=tensor.dtype,
        name=tensor.name,
        doc_string=tensor.doc_string,
        metadata_props=dict(tensor.metadata_props),
    )
