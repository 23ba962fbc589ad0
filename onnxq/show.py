"""What is in a file: a model's quantization (tensors, types, scales, sizes), or a statistics file.

Models of any tool are read: it is the Q, DQ, FakeQuantize and NNIEQuantize nodes in the graph that are shown, and the
weights of QOperators (QLinearConv, QGemm and so on).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxq.calibration.statistics import Statistics, TensorStatistics
from onnxq.errors import ModelError
from onnxq.file_system import is_there
from onnxq.graph.files.load import load
from onnxq.graph.files.origin import files_of
from onnxq.graph.values import constant_array, is_constant
from onnxq.measuring.metrics import jsonable
from onnxq.render.qoperator.expand import LAYOUTS

__all__ = ["ModelView", "QuantizedTensor", "StatisticsView", "show"]


@dataclass(frozen=True)
class QuantizedTensor:
    """A quantizer in a model.

    Attributes:
        tensor: name of the float tensor, or of the stored integers.
        role: ``"activation"``, ``"weight"`` or ``"bias"`` (a 32-bit constant).
        dtype: the integer type, e.g. ``"uint8"``; ``"log8"`` is the logarithmic grid of 8 bits.
        scales: number of scales; 1 is per tensor.
        axis: of the scales, None per tensor.
        scale: smallest and largest scale, None if they are computed by the model; of a logarithmic grid the clip value.
        zero_point: smallest and largest zero point, None if they are computed by the model.
        readers: operator types of the nodes that read it.
    """

    tensor: str
    role: str
    dtype: str
    scales: int
    axis: int | None
    scale: tuple[float, float] | None
    zero_point: tuple[int, int] | None
    readers: tuple[str, ...]


@dataclass(frozen=True)
class ModelView:
    """A model in short.

    Attributes:
        path: the file.
        file_bytes: its size, with its external data.
        opset: of the standard domain.
        producer: who wrote it.
        inputs: name → type and shape in words.
        outputs: name → type and shape in words.
        ops: operator type → how many nodes.
        weight_bytes: type of constants → their bytes.
        quantized: its quantizers, in the order of the graph.
    """

    path: str
    file_bytes: int
    opset: int | None
    producer: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    ops: Mapping[str, int]
    weight_bytes: Mapping[str, int]
    quantized: tuple[QuantizedTensor, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data."""
        return {"kind": "model", **asdict(self)}


@dataclass(frozen=True)
class StatisticsView:
    """A statistics file.

    Attributes:
        path: the file.
        file_bytes: its size.
        statistics: what is in it.
    """

    path: str
    file_bytes: int
    statistics: Statistics = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data; histograms are left out."""
        s = self.statistics
        return {
            "kind": "statistics",
            "path": self.path,
            "file_bytes": self.file_bytes,
            "model_digest": s.model_digest,
            "samples": s.samples,
            "kept_samples": [kept.index for kept in s.kept],
            "tensors": [_row(t) for t in s.tensors.values()],
            "unobservable": dict(s.unobservable),
            "warnings": s.warnings(),
        }


def _row(t: TensorStatistics) -> dict[str, Any]:
    names = ("name", "count", "min", "max", "mean", "std", "nan", "inf", "sentinels")
    return {name: jsonable(getattr(t, name)) for name in names}


def show(path: str | os.PathLike[str]) -> ModelView | StatisticsView:
    """Read a model or a statistics file (``.npz``).

    Raises:
        ModelError: the file is missing, or no sound ONNX model.
        StatisticsError: the file ends in .npz and holds no statistics.
    """
    file = Path(path)
    if file.suffix == ".npz":
        if not is_there(file, ModelError) or not file.is_file():
            raise ModelError("the file does not exist", where=str(file))
        return StatisticsView(str(file), file.stat().st_size, Statistics.load(file))
    model = load(file)
    ops: Counter[str] = Counter()
    weight_bytes: Counter[str] = Counter()
    for graph in (model.graph, *model.graph.subgraphs()):
        for value in graph.initializers.values():
            if value.const_value is None:
                continue
            weight_bytes[str(value.const_value.dtype).lower()] += value.const_value.nbytes
        ops.update(f"{n.domain}::{n.op_type}" if n.domain not in ("", "ai.onnx") else n.op_type for n in graph)
    return ModelView(
        path=str(file),
        file_bytes=file.stat().st_size + sum(other.stat().st_size for other in files_of(model)),
        opset=model.opset_imports.get(""),
        producer=" ".join(part for part in (model.producer_name, model.producer_version) if part),
        inputs=_signature(v for v in model.graph.inputs if v.const_value is None),
        outputs=_signature(model.graph.outputs),
        ops=dict(sorted(ops.items(), key=lambda pair: (-pair[1], pair[0]))),
        weight_bytes=dict(weight_bytes.most_common()),
        quantized=tuple(_quantizers(model)),
    )


def _signature(values: Iterable[ir.Value]) -> dict[str, str]:
    result = {}
    for value in values:
        shape = "unknown rank" if value.shape is None else "x".join(_dim(d) for d in value.shape) or "scalar"
        result[value.name or ""] = f"{str(value.dtype).lower() if value.dtype else 'unknown type'} {shape}"
    return result


def _dim(dim: int | ir.SymbolicDim) -> str:
    return str(dim) if isinstance(dim, int) else str(dim.value) if dim.value else "?"


_STORED = (ir.DataType.INT4, ir.DataType.UINT4, ir.DataType.INT8, ir.DataType.INT16)


def _quantizers(model: ir.Model) -> Iterable[QuantizedTensor]:
    for node in model.graph.all_nodes():
        source = node.inputs[0] if node.inputs else None
        if source is None:
            continue
        if node.op_type == "QuantizeLinear":
            behind = [use.node for use in node.outputs[0].uses()]
            reads = [u.node for d in behind if d.op_type == "DequantizeLinear" for u in d.outputs[0].uses()]
            others = [d for d in behind if d.op_type != "DequantizeLinear"]
            yield _quantizer(node, source, "weight" if is_constant(source) else "activation", [*reads, *others])
        elif (stored := _stored(node)) is not None:
            yield _quantizer(node, stored, "weight", [use.node for use in node.outputs[0].uses()])
        elif node.op_type in ("FakeQuantize", "NNIEQuantize"):
            role = "weight" if is_constant(source) else "activation"
            yield _quantizer(node, source, role, [use.node for use in node.outputs[0].uses()])
        elif (layout := LAYOUTS.get(node.op_type)) is not None and len(layout.data) > 1:
            weight = node.inputs[layout.data[1]]
            if weight is not None and is_constant(weight):
                scale, zero = layout.parameters()[1]
                axis = layout.weight_axis(node) % max(len(weight.shape or ()), 1)
                yield _quantizer(node, weight, "weight", [node], scale=scale, zero=zero, axis=axis)


def _stored(node: ir.Node) -> ir.Value | None:
    """The constant integers that a node scales; a Mul those that a Cast makes float, of the weight of a float layer."""
    stored = _integers(node.inputs[0])
    if node.op_type == "Mul":
        return stored if stored is not node.inputs[0] and is_constant(node.inputs[1]) else None
    return stored if node.op_type == "DequantizeLinear" else None


def _integers(value: ir.Value | None) -> ir.Value | None:
    """The constant that a value is, or the constant integers of at most 16 bits that a Cast makes it of."""
    cast = value.producer() if value is not None else None
    if value is None or cast is None or cast.op_type != "Cast":
        return value if is_constant(value) else None
    stored = cast.inputs[0]
    narrow = stored is not None and stored.dtype in _STORED
    return stored if narrow and is_constant(stored) else None


def _quantizer(
    node: ir.Node,
    source: ir.Value,
    role: str,
    readers: Iterable[ir.Node],
    *,
    scale: int = 1,
    zero: int = 2,
    axis: int | None = None,
) -> QuantizedTensor:
    """What a node says of the tensor that it quantizes, or whose integers it reads.

    Args:
        node: the node.
        source: the tensor.
        role: see :class:`QuantizedTensor`.
        readers: the nodes that read it.
        scale: position of the scale.
        zero: position of the zero point.
        axis: of the scales, where the node itself does not say.
    """
    scales = constant_array(node.inputs[scale]) if len(node.inputs) > scale else None
    zero_value = node.inputs[zero] if len(node.inputs) > zero else None
    zeros = constant_array(zero_value) if zero_value is not None else np.zeros(1, np.int64)
    if node.op_type == "FakeQuantize":
        dtype = _fake_dtype(node)
    elif node.op_type == "NNIEQuantize":
        dtype = "log8"
    else:
        kind = zero_value.dtype if zero_value is not None else None
        if node.op_type in ("DequantizeLinear", "Mul") or kind is None:
            kind = source.dtype if node.op_type in ("DequantizeLinear", "Mul") else ir.DataType.UINT8
        dtype = str(kind).lower()
    many = scales is not None and scales.size > 1
    if role == "weight" and dtype == "int32":
        role = "bias"
    return QuantizedTensor(
        tensor=source.name or "",
        role=role,
        dtype=dtype,
        scales=0 if scales is None else int(scales.size),
        axis=(_axis(node, scales) if axis is None else axis) if many and scales is not None else None,
        scale=(float(scales.min()), float(scales.max())) if scales is not None and scales.size else None,
        zero_point=(int(zeros.min()), int(zeros.max())) if zeros is not None and zeros.size else None,
        readers=tuple(dict.fromkeys(reader.op_type for reader in readers)),
    )


def _axis(node: ir.Node, scales: np.ndarray) -> int:
    if "axis" in node.attributes:
        return node.attributes["axis"].as_int()
    if scales.ndim > 1:  # FakeQuantize: shaped to broadcast
        return int(np.argmax(scales.shape))
    return 1


def _fake_dtype(node: ir.Node) -> str:
    low, high = (node.attributes[name].as_int() for name in ("quant_min", "quant_max"))
    bits = max(int(high - low).bit_length(), 1)
    return f"{'int' if low < 0 else 'uint'}{bits}"
