"""A model in memory handed over to onnxruntime without its big initializers.

These are marked as external data in the serialized graph and given to onnxruntime as they are, so that models above
protobuf's 2 GB work and nothing is written to disk. Those of types that Python has no arrays of, 4 bits say, stay in.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from onnxq.errors import ExecutionError
from onnxq.graph.skeleton import serialized
from onnxq.ort.messages import first_line

__all__ = ["hand_over"]

_SPLIT_BYTES = 1024  # initializers above this are handed over beside the graph

_SPLIT_TYPES = {
    ir.DataType.FLOAT,
    ir.DataType.DOUBLE,
    ir.DataType.FLOAT16,
    ir.DataType.INT8,
    ir.DataType.INT16,
    ir.DataType.INT32,
    ir.DataType.INT64,
    ir.DataType.UINT8,
    ir.DataType.UINT16,
    ir.DataType.UINT32,
    ir.DataType.UINT64,
}


def hand_over(model: ir.Model, options: Any) -> tuple[bytes, list[Any]]:
    """Serialize a model without its big initializers, which are given to ``options`` as arrays.

    Args:
        model: left as it is.
        options: ``onnxruntime.SessionOptions``.

    Returns:
        The model serialized, and what has to live as long as the session.

    Raises:
        ExecutionError: the model cannot be serialized.
    """
    kept_alive: list[Any] = []
    graph = model.graph
    overridable = {value.name for value in graph.inputs}
    names: list[str] = []
    values: list[Any] = []
    held: list[ir.Value] = []
    for name, value in graph.initializers.items():
        tensor = value.const_value
        held.append(value)
        if tensor is None:
            continue
        beside = name not in overridable and tensor.dtype in _SPLIT_TYPES and value.uses()
        if not beside or tensor.nbytes <= _SPLIT_BYTES:
            if isinstance(tensor, ir.ExternalTensor):
                held[-1] = _inside(value, tensor)
            continue
        array = np.ascontiguousarray(tensor.numpy())
        names.append(name)
        values.append(ort.OrtValue.ortvalue_from_numpy(array))
        kept_alive.append(array)
        shape = ir.Shape(tuple(tensor.shape.numpy()))
        elsewhere = ir.ExternalTensor("mem", 0, tensor.nbytes, tensor.dtype, shape=shape, name=name)
        held[-1] = ir.Value(name=name, type=value.type, shape=value.shape, const_value=elsewhere)
    if names:
        options.add_external_initializers(names, values)
        kept_alive.extend(values)
    try:
        return bytes(serialized(model, graph.inputs, held).SerializeToString()), kept_alive
    except ValueError as error:
        raise ExecutionError(f"the model cannot be serialized ({first_line(error)})") from error


def _inside(value: ir.Value, tensor: ir.ExternalTensor) -> ir.Value:
    """An initializer that is serialized with its numbers: onnxruntime reads no data file of a model without a path."""
    raw = np.fromfile(tensor.path, np.uint8, tensor.nbytes, offset=tensor.offset or 0)
    proto = onnx.TensorProto(name=value.name, dims=tensor.shape.numpy(), data_type=tensor.dtype.value)
    proto.raw_data = raw.tobytes()
    return ir.Value(name=value.name, type=value.type, shape=value.shape, const_value=ir.serde.TensorProtoTensor(proto))
