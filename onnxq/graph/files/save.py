"""Saving: all or nothing, the same bytes each time, external data when a protobuf cannot hold the model."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx_ir as ir

from onnxq.errors import OutputError
from onnxq.file_system import hint_for, is_full, keep_mode, temporary_beside
from onnxq.graph.files.origin import spare_files
from onnxq.graph.traverse import with_subgraphs
from onnxq.graph.values import tensor_of

__all__ = ["MAX_PROTO_BYTES", "file_size", "padding", "proto_size", "save", "serialized_size", "to_proto"]

MAX_PROTO_BYTES = 1_900_000_000
"""A model that would be larger goes to external data by itself; protobuf's own limit is 2 GiB."""

_EXTERNAL_FROM = 1024
"""Initializers of fewer bytes stay in the protobuf: runtimes want shapes and axes there."""
_OTHER_FORMS = (
    "float_data",
    "int32_data",
    "string_data",
    "int64_data",
    "double_data",
    "uint64_data",
    "external_data",
    "metadata_props",
)
"""Fields of a tensor beside those of every tensor in the usual form."""

_PAGE, _LINE = 4096, 64
_MAPPED_FROM = 1 << 20
"""External tensors from this size on start on a page, so that any runtime can map them; smaller ones would grow."""


def padding(position: int, size: int) -> int:
    """Bytes to leave free in a data file, from a position on, in front of a tensor of a size."""
    return -position % (_PAGE if size >= _MAPPED_FROM else _LINE)


def _initializers(model: ir.Model) -> Iterator[ir.Value]:
    for graph in with_subgraphs(model.graph):
        for value in graph.initializers.values():
            if value.const_value is not None:
                yield value


def serialized_size(model: ir.Model) -> int:
    """Bytes of the tensors of a model plus a generous guess for the rest, without reading or serializing them."""
    size = 4096
    for value in _initializers(model):
        tensor = value.const_value
        if tensor is not None:
            size += (1024 if tensor.dtype == ir.DataType.STRING else tensor.nbytes) + 64 + 2 * len(value.name or "")
    for graph in with_subgraphs(model.graph):
        for node in graph:
            size += 64 + 3 * sum(len(v.name or "") + 32 for v in (*node.inputs, *node.outputs) if v is not None)
            for attr in node.attributes.values():
                if not attr.is_ref() and attr.type == ir.AttributeType.TENSOR:
                    tensor = tensor_of(attr)
                    size += 1024 if tensor.dtype == ir.DataType.STRING else tensor.nbytes
    return size


def file_size(model: ir.Model) -> int:
    """Bytes of a model as one protobuf, exact; its bigger tensors are neither read nor copied.

    Bytes of a data file that several initializers of the main graph stand for count once.
    """
    hollow: dict[ir.Value, ir.TensorProtocol] = {}
    bytes_of: dict[str, int] = {}
    places: set[tuple[str, int | None]] = set()
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        if tensor is not None and tensor.dtype != ir.DataType.STRING and tensor.nbytes >= _EXTERNAL_FROM:
            hollow[value] = _Hollow(tensor)
            if isinstance(tensor, ir.ExternalTensor):
                place = (str(tensor.path), tensor.offset)
                if place in places:
                    continue
                places.add(place)
            known = isinstance(tensor, ir.serde.TensorProtoTensor) and not tensor.metadata_props
            bytes_of[name] = proto_size(tensor.raw, tensor.nbytes) if known else -tensor.nbytes
    with _swapped(hollow):
        proto = _serialized(model)
    added = 0
    for written in proto.graph.initializer:
        size = bytes_of.get(written.name)
        if size is None:
            continue
        before = written.ByteSize()
        after = size if size > 0 else before - 1 + _digits(-size) - size
        added += _digits(after) + after - _digits(before) - before
    graph = proto.graph.ByteSize()
    return int(proto.ByteSize()) + added + _digits(graph + added) - _digits(graph)


def proto_size(tensor: onnx.TensorProto, nbytes: int) -> int:
    """Bytes of a tensor as protobuf: what ``ByteSize`` gives, which writes all numbers just to count them.

    Args:
        tensor: of any form.
        nbytes: what its numbers take in memory, which is what they take in the usual form.
    """
    usual = tensor.HasField("raw_data") and not tensor.HasField("segment")
    if not usual or any(len(getattr(tensor, name)) for name in _OTHER_FORMS):
        return int(tensor.ByteSize())
    shell = onnx.TensorProto(dims=tensor.dims)
    for name in ("data_type", "name", "doc_string", "data_location"):
        if tensor.HasField(name):
            setattr(shell, name, getattr(tensor, name))
    return int(shell.ByteSize()) + 1 + _digits(nbytes) + nbytes


def _digits(number: int) -> int:
    """Bytes that protobuf needs for a length."""
    return max(1, -(-number.bit_length() // 7))


class _Hollow(ir.LazyTensor):
    """A tensor that is written without its numbers."""

    def __init__(self, tensor: ir.TensorProtocol) -> None:
        shape = ir.Shape(tensor.shape.numpy())
        super().__init__(lambda: tensor, tensor.dtype, shape, doc_string=tensor.doc_string)
        self.metadata_props.update(tensor.metadata_props)

    def tobytes(self) -> bytes:
        """No numbers."""
        return b""


def _inline(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """A tensor that serializes with its data, where onnx-ir would only write down the file it lies in."""
    if isinstance(tensor, ir.ExternalTensor):
        return ir.LazyTensor(
            lambda: ir.Tensor(tensor.numpy(), dtype=tensor.dtype),
            dtype=tensor.dtype,
            shape=tensor.shape,
            name=tensor.name,
        )
    return tensor


@contextlib.contextmanager
def _swapped(replacements: dict[ir.Value, ir.TensorProtocol]) -> Iterator[None]:
    """Lets initializers have other tensors for a while."""
    before = {value: value.const_value for value in replacements}
    try:
        for value, tensor in replacements.items():
            value.const_value = tensor
        yield
    finally:
        for value, old in before.items():
            value.const_value = old


def _serialized(model: ir.Model) -> onnx.ModelProto:
    """A model as a protobuf, without the empty names at the ends of inputs: they say nothing, and some parsers fail."""
    proto = ir.serde.serialize_model(model)
    stack = [proto.graph.node, *(function.node for function in proto.functions)]
    while stack:
        for node in stack.pop():
            while node.input and not node.input[-1]:
                del node.input[-1]
            stack += [attribute.g.node for attribute in node.attribute if attribute.HasField("g")]
            stack += [graph.node for attribute in node.attribute for graph in attribute.graphs]
    return proto


def to_proto(model: ir.Model) -> onnx.ModelProto:
    """The whole model as one protobuf, data included; ``model`` is left as it is.

    Raises:
        OutputError: it does not fit into a protobuf.
    """
    size = serialized_size(model)
    if size > MAX_PROTO_BYTES:
        raise OutputError(
            f"the model has about {size} bytes, too many for one protobuf", hint="Save it with external data"
        )
    inline = {
        value: _inline(value.const_value)
        for value in _initializers(model)
        if isinstance(value.const_value, ir.ExternalTensor)
    }
    with _swapped(inline):
        return _serialized(model)


def save(model: ir.Model, path: str | os.PathLike[str], *, external_data: bool | None = None) -> list[Path]:
    """Writes a model; until everything is on the disk, whatever was at ``path`` stays there.

    The files are written under temporary names in the same folder and renamed at the end. A link at ``path`` is
    followed, not replaced.

    Args:
        model: left as it is.
        path: the ``.onnx`` file.
        external_data: tensors of 1 KiB and more go to ``<name>.data`` beside it; None means only when the model would
            not fit into one protobuf.

    Returns:
        The files written, the model first: named as the path given is.

    Raises:
        OutputError: a file belongs to the model that this one was read from, the folder is missing or cannot be
            written, or the disk is full. No partial file is left behind.
    """
    target = Path(path)
    folder = target.resolve().parent
    target = folder / target.resolve().name
    size = serialized_size(model)
    if target.is_dir():
        raise OutputError("this is a folder", where=f"'{path}'", hint="Give the path of the file to write")
    if not folder.is_dir():
        raise OutputError(f"the folder '{folder}' does not exist", where=f"'{path}'", hint="Create it first")
    if external_data is None:
        external_data = size > MAX_PROTO_BYTES
    data = folder / f"{target.name}.data"
    temporary, temporary_data = temporary_beside(target), temporary_beside(data)
    moves = [(temporary_data, data), (temporary, target)] if external_data else [(temporary, target)]
    spare_files(model, *(final for _, final in moves))
    try:
        if external_data:
            moved = _write_data(model, temporary_data, data.name)
            with _swapped(moved):
                proto = _serialized(model)
        else:
            proto = to_proto(model)
        with open(temporary, "wb") as file:
            file.write(proto.SerializeToString(deterministic=True))
            file.flush()
            os.fsync(file.fileno())
        for source, final in moves:
            keep_mode(final, source)
            os.replace(source, final)
    except OSError as error:
        needed = f"; about {size} bytes are needed" if is_full(error) else ""
        raise OutputError(
            f"cannot be written: {error.strerror or error}{needed}",
            where=f"'{path}'",
            hint=hint_for(error),
        ) from error
    except ValueError as error:  # protobuf's own complaint about a message over 2 GiB
        raise OutputError(
            f"cannot be serialized: {error}", where=f"'{path}'", hint="Save it with external data"
        ) from error
    finally:
        for source, _ in moves:
            with contextlib.suppress(OSError):
                source.unlink(missing_ok=True)
    given = Path(path)
    beside = data if given.is_symlink() else given.with_name(data.name)
    return [given, beside] if external_data else [given]


def _write_data(model: ir.Model, temporary: Path, location: str) -> dict[ir.Value, ir.TensorProtocol]:
    """Writes the bigger tensors one after another and returns what refers to them in the file's final place."""
    moved: dict[ir.Value, ir.TensorProtocol] = {}
    with open(temporary, "wb") as file:
        position = 0
        for value in _initializers(model):
            tensor = value.const_value
            if tensor is None or tensor.dtype == ir.DataType.STRING:
                continue
            if tensor.nbytes < _EXTERNAL_FROM:
                moved[value] = _inline(tensor)
                continue
            free = padding(position, tensor.nbytes)
            file.write(bytes(free))
            position += free
            writer = getattr(tensor, "tofile", None)
            if writer is not None:
                writer(file)
            else:
                file.write(tensor.tobytes())
            file.flush()
            written = file.tell() - position
            if written != tensor.nbytes:
                raise OSError(f"tensor '{value.name}' wrote {written} bytes in place of {tensor.nbytes}")
            moved[value] = ir.ExternalTensor(
                location,
                position,
                tensor.nbytes,
                tensor.dtype,
                shape=ir.Shape(tensor.shape.numpy()),
                name=value.name or "",
            )
            position += tensor.nbytes
        os.fsync(file.fileno())
    return moved
