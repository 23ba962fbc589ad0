"""A model as it came, held beside what became of it, so that a large file is read once."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx_ir as ir

from onnxq.graph.files.load import ModelSource, load
from onnxq.graph.files.origin import files_of
from onnxq.graph.files.save import file_size
from onnxq.graph.traverse import all_constants, all_nodes

__all__ = ["AsItCame", "given_size"]

_LARGE = 64 << 20
"""Bytes of a model that takes long to read again."""
_OWN = 1 / 16
"""Of its bytes, that it may hold alone: weights that the passes have made others of would take memory all along."""


class AsItCame:
    """A model as it came, of which there is a copy if it is large; both share the numbers of their constants.

    Args:
        model: as it was loaded, before anything is done to it.
        source: what it was loaded from.

    Attributes:
        bytes: its size, see :func:`given_size`.
    """

    def __init__(self, model: ir.Model, source: ModelSource) -> None:
        self._source, self._operators = source, _operators(model)
        self.bytes = given_size(source, model)
        self._copy = load(model, again=True) if self.bytes >= _LARGE else None
        self._tensors = list(_tensors(model)) if self._copy is not None else []

    def beside(self, model: ir.Model) -> ModelSource | None:
        """What the model as it came is to be loaded from; None where it computed with the same operators. Asked once.

        Args:
            model: what became of it, in place.
        """
        shared = {id(tensor) for tensor in _tensors(model)} if self._copy is not None else set()
        own = sum(t.nbytes for t in self._tensors if id(t) not in shared and not isinstance(t, ir.ExternalTensor))
        copy, self._copy, self._tensors = self._copy, None, []
        if self._operators == _operators(model):
            return None
        return copy if copy is not None and own <= self.bytes * _OWN else self._source


def given_size(source: ModelSource, model: ir.Model) -> int:
    """Bytes of a model as it was given: of its one file; else, where it has none or several, of a file of all of it.

    Written again it may be a little larger or smaller, by fields that say nothing.

    Args:
        source: what was given.
        model: what was loaded from it, as it was loaded.
    """
    if not files_of(model):
        if isinstance(source, (bytes, bytearray, memoryview)):
            return memoryview(source).nbytes
        if isinstance(source, (str, os.PathLike)) and _is_binary(Path(source)):
            return Path(source).stat().st_size
    return file_size(model)


def _is_binary(path: Path) -> bool:
    return onnx.serialization.registry.get_format_from_file_extension(path.suffix) in (None, "protobuf")


def _operators(model: ir.Model) -> Counter[str]:
    """How many nodes of which type compute something."""
    return Counter(node.op_type for node in all_nodes(model) if node.op_type not in ("Constant", "Identity"))


def _tensors(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    """The tensors that the constants of a model are, and those that its nodes hold."""
    for value in all_constants(model).values():
        if value.const_value is not None:
            yield value.const_value
    for node in all_nodes(model):
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
                yield attribute.value
