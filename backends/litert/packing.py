"""The bytes of a TensorFlow Lite file.

It is a FlatBuffer after ``schema.fbs`` (tensorflow/compiler/mlir/lite/schema), whose Python classes come with the
package ai-edge-litert.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.backends.litert.flat import TYPES, FlatModel, FlatOperator, FlatTensor
from onnxq.backends.litert.versions import version
from onnxq.errors import BackendError

__all__ = ["packed"]

_OPTIONS: Mapping[str, str] = {
    "CONV_2D": "Conv2DOptions",
    "CONV_3D": "Conv3DOptions",
    "DEPTHWISE_CONV_2D": "DepthwiseConv2DOptions",
    "TRANSPOSE_CONV": "TransposeConvOptions",
    "FULLY_CONNECTED": "FullyConnectedOptions",
    "BATCH_MATMUL": "BatchMatMulOptions",
    "AVERAGE_POOL_2D": "Pool2DOptions",
    "MAX_POOL_2D": "Pool2DOptions",
    "ADD": "AddOptions",
    "SUB": "SubOptions",
    "MUL": "MulOptions",
    "DIV": "DivOptions",
    "SQUARED_DIFFERENCE": "SquaredDifferenceOptions",
    "CONCATENATION": "ConcatenationOptions",
    "SOFTMAX": "SoftmaxOptions",
    "LEAKY_RELU": "LeakyReluOptions",
    "GELU": "GeluOptions",
    "RESHAPE": "ReshapeOptions",
    "RESIZE_BILINEAR": "ResizeBilinearOptions",
    "RESIZE_NEAREST_NEIGHBOR": "ResizeNearestNeighborOptions",
    "MEAN": "ReducerOptions",
    "SUM": "ReducerOptions",
    "REDUCE_MAX": "ReducerOptions",
    "REDUCE_MIN": "ReducerOptions",
    "REDUCE_PROD": "ReducerOptions",
    "STRIDED_SLICE": "StridedSliceOptions",
    "SPLIT_V": "SplitVOptions",
    "GATHER": "GatherOptions",
    "MIRROR_PAD": "MirrorPadOptions",
    "DEPTH_TO_SPACE": "DepthToSpaceOptions",
    "SPACE_TO_DEPTH": "SpaceToDepthOptions",
    "CAST": "CastOptions",
    "ARG_MAX": "ArgMaxOptions",
    "ARG_MIN": "ArgMinOptions",
    "CUMSUM": "CumsumOptions",
    "ONE_HOT": "OneHotOptions",
    "LOCAL_RESPONSE_NORMALIZATION": "LocalResponseNormalizationOptions",
}
"""Operators that say more than their name, and the table of the schema that they say it in."""
_OF_VERSIONS = frozenset({"grouped"})
"""What is said of an operator for its version alone: the schema has no place for it."""
_ALIGNMENT = 16
"""Bytes that the schema asks data to be aligned to."""
_LARGEST = 2**31 - 1
"""Bytes that a FlatBuffer can hold."""


def packed(model: FlatModel, description: str) -> bytes:
    """The file of a model.

    Raises:
        BackendError: it would be larger than a FlatBuffer can be.
    """
    size = sum(tensor.data.nbytes for tensor in model.tensors if tensor.data is not None)
    if size > _LARGEST:
        raise BackendError(
            f"its weights are {size / 2**30:.1f} GiB, and a TensorFlow Lite file holds 2",
            where="litert",
            hint="Cut the model into parts",
        )
    return _Packer(model, description).file(size)


class _Packer:
    """Makes the tables of the schema."""

    def __init__(self, model: FlatModel, description: str) -> None:
        from ai_edge_litert import schema_py_generated

        self.schema: Any = schema_py_generated
        self.model, self.description = model, description
        self.codes: dict[tuple[str, int], int] = {}
        self.buffers: list[Any] = [self.schema.BufferT()]  # the first is empty by convention
        self.known: dict[bytes, int] = {}

    def file(self, size: int) -> bytes:
        """The bytes of the file; ``size``: of its constants."""
        schema, model = self.schema, self.model
        graph = schema.SubGraphT()
        graph.name = "main"
        graph.tensors = [self._tensor(tensor) for tensor in model.tensors]
        graph.operators = [self._operator(operator) for operator in model.operators]
        graph.inputs, graph.outputs = list(model.inputs.values()), list(model.outputs.values())
        made = schema.ModelT()
        made.version, made.description = 3, self.description
        made.subgraphs, made.buffers = [graph], self.buffers
        made.operatorCodes = [self._code(kind, number) for kind, number in self.codes]
        made.signatureDefs = [self._signature()]
        builder = _builder(size + size // 8 + (1 << 16))
        builder.Finish(made.Pack(builder), b"TFL3")
        return bytes(builder.Output())

    def _tensor(self, tensor: FlatTensor) -> Any:
        made = self.schema.TensorT()
        made.name, made.shape, made.hasRank = tensor.name, list(tensor.shape), True
        made.type = getattr(self.schema.TensorType, TYPES[tensor.dtype])
        if tensor.data is not None:
            made.buffer = self._buffer(_bytes_of(tensor.data, two=tensor.dtype is ir.DataType.INT4))
        if tensor.grid is not None:
            grid = self.schema.QuantizationParametersT()
            grid.scale, grid.zeroPoint = list(tensor.grid.scale), list(tensor.grid.zero_point)
            grid.quantizedDimension = tensor.grid.axis
            made.quantization = grid
        return made

    def _buffer(self, data: NDArray[np.uint8]) -> int:
        """The buffer that holds some bytes: one for all tensors that have them."""
        digest = hashlib.blake2b(data.data).digest() if data.size else b""
        if digest not in self.known:
            buffer = self.schema.BufferT()
            buffer.data = data
            self.known[digest] = len(self.buffers)
            self.buffers.append(buffer)
        return self.known[digest]

    def _operator(self, operator: FlatOperator) -> Any:
        types = [self.model.tensors[index].dtype if index >= 0 else None for index in operator.inputs]
        ranks = [len(self.model.tensors[index].shape) for index in operator.inputs if index >= 0]
        types += [self.model.tensors[operator.outputs[0]].dtype] if operator.kind == "QUANTIZE" else []
        number = version(operator.kind, types, max(ranks, default=0), operator.options)
        made = self.schema.OperatorT()
        made.opcodeIndex = self.codes.setdefault((operator.kind, number), len(self.codes))
        made.inputs, made.outputs = list(operator.inputs), list(operator.outputs)
        table = _OPTIONS.get(operator.kind)
        if table is not None:
            made.builtinOptionsType = getattr(self.schema.BuiltinOptions, table)
            made.builtinOptions = getattr(self.schema, f"{table}T")()
            for name, value in operator.options.items():
                if name not in _OF_VERSIONS:
                    assert hasattr(made.builtinOptions, name), (table, name)
                    setattr(made.builtinOptions, name, self._coded(name, value))
        return made

    def _coded(self, name: str, value: Any) -> Any:
        """The number of a word of the schema."""
        if not isinstance(value, str):
            return value
        words = {"padding": "Padding", "mode": "MirrorPadMode"}.get(name, "TensorType")
        return getattr(getattr(self.schema, words), value)

    def _code(self, kind: str, number: int) -> Any:
        made = self.schema.OperatorCodeT()
        made.builtinCode = getattr(self.schema.BuiltinOperator, kind)
        placeholder = self.schema.BuiltinOperator.PLACEHOLDER_FOR_GREATER_OP_CODES
        made.deprecatedBuiltinCode = min(made.builtinCode, placeholder)
        made.version = number
        return made

    def _signature(self) -> Any:
        made = self.schema.SignatureDefT()
        made.signatureKey = "serving_default"
        made.inputs, made.outputs = (
            [self._mapped(name, index) for name, index in names.items()]
            for names in (self.model.inputs, self.model.outputs)
        )
        return made

    def _mapped(self, name: str, index: int) -> Any:
        made = self.schema.TensorMapT()
        made.name, made.tensorIndex = name, index
        return made


def _bytes_of(data: NDArray[Any], *, two: bool) -> NDArray[np.uint8]:
    """Numbers as they lie in a file; ``two`` in a byte, the first in its lower half."""
    if not two:
        return np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    codes = data.astype(np.int8).reshape(-1).view(np.uint8) & 15
    codes = np.append(codes, np.zeros(codes.size % 2, np.uint8))
    return np.asarray(codes[::2] | codes[1::2] << 4, np.uint8)


def _builder(size: int) -> Any:
    """A builder of FlatBuffers that aligns data as the schema asks for, which that for Python does not by itself."""
    import flatbuffers

    class Builder(flatbuffers.Builder):  # type: ignore[misc]
        def CreateNumpyVector(self, x: NDArray[Any]) -> int:  # noqa: N802 - its name in the package
            self.StartVector(x.itemsize, x.size, _ALIGNMENT)
            payload = x.tobytes()
            self.head -= len(payload)
            self.Bytes[self.head : self.head + len(payload)] = payload
            self.vectorNumElems = x.size
            return int(self.EndVector())

    return Builder(size)
