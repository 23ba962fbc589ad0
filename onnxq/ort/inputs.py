"""What a model takes and gives: names, types and shapes; read off a model without loading it in onnxruntime."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxq.errors import ModelError

__all__ = ["InputInfo", "inputs_of"]


@dataclass(frozen=True, slots=True)
class InputInfo:
    """An input or output of a model.

    Attributes:
        name: its name.
        dtype: NumPy type of its elements; ``object`` for strings and for what is not a tensor.
        shape: a number a dimension, a name or None where it is free; None when the rank is unknown.
        container: ``"sequence"`` or ``"map"`` where it is one; empty for a tensor, optional or not.
        default: whether the model has a value for it, so that it need not be fed.
        optional: whether the model runs without it, and computes something else then.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | str | None, ...] | None
    container: str = ""
    default: bool = False
    optional: bool = False


def inputs_of(model: ir.Model, *, defaults: bool = False) -> list[InputInfo]:
    """The inputs of a model that must be fed, or are optional, in order, without loading it in onnxruntime.

    Args:
        model: the model.
        defaults: with those behind that may be fed, since the model has a value for them.

    Raises:
        ModelError: an input has no element type.
    """
    infos = []
    for value in model.graph.inputs:
        if value.is_initializer() and not defaults:
            continue
        optional = isinstance(value.type, ir.OptionalType)
        kind = value.type.elem_type if isinstance(value.type, ir.OptionalType) else value.type
        if isinstance(kind, ir.TensorType) and kind.dtype is ir.DataType.UNDEFINED:
            raise ModelError("it has no element type", where=f"model input {value.name!r}")
        tensor = isinstance(kind, ir.TensorType) and kind.dtype != ir.DataType.STRING
        dtype = kind.dtype.numpy() if isinstance(kind, ir.TensorType) and tensor else np.dtype(object)
        shape = None
        if value.shape is not None:
            shape = tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)
        container = "sequence" if isinstance(kind, ir.SequenceType) else ""
        default = value.is_initializer()
        infos.append(InputInfo(value.name or "", np.dtype(dtype), shape, container, default, optional))
    return sorted(infos, key=lambda info: info.default)
