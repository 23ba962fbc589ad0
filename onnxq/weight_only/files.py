"""The result's files: written in a folder of their own beside the target, moved into place when all is well.

Where the model keeps its tensors in a data file, each result goes to the new data file as soon as it is made.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import onnx_ir as ir

from onnxq.errors import OutputError
from onnxq.file_system import hint_for, keep_mode
from onnxq.graph.files.save import MAX_PROTO_BYTES, padding, save, serialized_size
from onnxq.graph.traverse import with_subgraphs
from onnxq.graph.widened import Widened

__all__ = ["Output"]

_EXTERNAL_FROM = 1024
_PIECE = 4 << 20


def _external_files(model: ir.Model) -> set[Path]:
    """The data files that a model's initializers lie in."""
    held = (t.source if isinstance(t, Widened) else t for t in _tensors(model))
    return {Path(t.path).resolve() for t in held if isinstance(t, ir.ExternalTensor)}


def _tensors(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    for graph in with_subgraphs(model.graph):
        for value in graph.initializers.values():
            if value.const_value is not None:
                yield value.const_value


class Output:
    """Files in the making; nothing is left of them unless :meth:`finish` was reached.

    Args:
        path: the ``.onnx`` file to be.
        model: what it is made from; its files are never written to.
        source: what that model came from, a file or not.

    Raises:
        OutputError: the folder is missing or cannot be written, or a file of the input would be overwritten.
    """

    def __init__(self, path: str | os.PathLike[str], model: ir.Model, source: object) -> None:
        target = Path(path).absolute()
        if target.is_dir():
            raise OutputError("this is a folder", where=f"'{path}'", hint="Give the path of the file to write")
        self.target = target.resolve()
        folder = self.target.parent
        if not folder.is_dir():
            raise OutputError("the folder does not exist", where=str(folder), hint="Create it first")
        inputs = _external_files(model)
        self.external = bool(inputs) or serialized_size(model) > MAX_PROTO_BYTES
        taken = inputs | ({Path(source).resolve()} if isinstance(source, (str, os.PathLike)) else set())
        for file in (self.target, self._data_target) if self.external else (self.target,):
            if file.resolve() in taken:
                raise OutputError(
                    "this file belongs to the model that is read", where=f"'{file}'", hint="Give another name"
                )
        try:
            self._folder = Path(tempfile.mkdtemp(prefix=".onnxq-", suffix=".tmp", dir=folder))
        except OSError as error:
            raise OutputError(f"cannot be written: {error.strerror}", where=f"'{path}'") from error
        self.model_file = self._folder / self.target.name
        self._data_file = self._folder / self._data_target.name
        self._stream: BinaryIO | None = None

    @property
    def _data_target(self) -> Path:
        return self.target.with_name(f"{self.target.name}.data")

    def __enter__(self) -> Output:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stream is not None:
            self._stream.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        if isinstance(error, OSError):
            raise OutputError(
                f"cannot be written: {error.strerror or error}",
                where=f"'{self.target}'",
                hint=hint_for(error),
            ) from error
        if isinstance(error, OutputError) and str(self._folder) in (error.where or ""):  # which is gone, and nobody's
            raise OutputError(error.what, where=f"'{self.target}'", hint=error.hint) from error

    def keep(self, tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        """Write a tensor to the data file now, where there is one; gives what stands for it.

        The tensor that stands for it can be read; its file is found again after :meth:`write`.
        """
        if not self.external or tensor.nbytes < _EXTERNAL_FROM or tensor.dtype == ir.DataType.STRING:
            return tensor
        stream = self._open()
        stream.write(bytes(padding(stream.tell(), tensor.nbytes)))
        start = stream.tell()
        if isinstance(tensor, ir.ExternalTensor):
            self._copy(tensor, stream)
        elif isinstance(tensor, ir.PackedTensor):
            tensor.raw.tofile(stream)
        else:
            tensor.numpy().tofile(stream)
        stream.flush()
        if stream.tell() - start != tensor.nbytes:
            raise OSError(f"tensor '{tensor.name}' wrote {stream.tell() - start} bytes in place of {tensor.nbytes}")
        shape = ir.Shape(tensor.shape.numpy())
        return ir.ExternalTensor(
            str(self._data_file), start, tensor.nbytes, tensor.dtype, shape=shape, name=tensor.name or ""
        )

    def _open(self) -> BinaryIO:
        if self._stream is None:
            self._stream = open(self._data_file, "wb")  # noqa: SIM115, lives as long as the object
        return self._stream

    def _copy(self, tensor: ir.ExternalTensor, stream: BinaryIO) -> None:
        with open(tensor.path, "rb") as source:
            source.seek(tensor.offset or 0)
            left = tensor.nbytes
            while left:
                piece = source.read(min(left, _PIECE))
                if not piece:
                    raise OSError(f"the data of tensor '{tensor.name}' is cut short")
                stream.write(piece)
                left -= len(piece)

    def write(self, model: ir.Model) -> Path:
        """Write the model, and all of its tensors that are not in the data file yet.

        Returns:
            The file, which lies beside its data and can be loaded from there.
        """
        if not self.external:
            return save(model, self.model_file, external_data=False)[0]
        self._open()
        moved: dict[ir.Value, ir.ExternalTensor] = {}
        for graph in with_subgraphs(model.graph):
            for value in graph.initializers.values():
                tensor = value.const_value
                if tensor is None:
                    continue
                own = isinstance(tensor, ir.ExternalTensor) and Path(tensor.path) == self._data_file
                held = tensor if own else self.keep(tensor)
                if isinstance(held, ir.ExternalTensor):
                    moved[value] = held
        assert self._stream is not None
        os.fsync(self._stream.fileno())
        try:
            for value, held in moved.items():
                value.const_value = ir.ExternalTensor(
                    self._data_target.name,
                    held.offset,
                    held.length,
                    held.dtype,
                    shape=held.shape,
                    name=value.name or "",
                )
            proto = ir.serde.serialize_model(model)
        finally:
            for value, held in moved.items():
                value.const_value = held
        with open(self.model_file, "wb") as file:
            file.write(proto.SerializeToString(deterministic=True))
            file.flush()
            os.fsync(file.fileno())
        return self.model_file

    def finish(self) -> list[Path]:
        """Move the files into place, data first."""
        if self._stream is not None:
            self._stream.close()
        made = [self.target]
        moves = [(self.model_file, self.target)]
        if self.external:
            moves.insert(0, (self._data_file, self._data_target))
            made.append(self._data_target)
        for source, final in moves:
            keep_mode(final, source)
            os.replace(source, final)
        return made
