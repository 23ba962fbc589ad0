"""What is in a file: a model's quantization (tensors, types, scales, sizes), or a statistics file; of any tool."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import onnx_ir as ir

from onnxq.calibration.statistics import Statistics, TensorStatistics
from onnxq.errors import ModelError
from onnxq.file_system import is_there
from onnxq.graph.files.load import load
from onnxq.graph.files.origin import files_of
from onnxq.graph.files.qonnx import GIVEN_AS
from onnxq.graph.traverse import full_type
from onnxq.measuring.metrics import jsonable
from onnxq.render.reading.quantized_tensor import QuantizedTensor
from onnxq.render.reading.quantizers import quantizers

__all__ = ["ModelView", "StatisticsView", "show"]


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
            "kept_samples": [kept.place for kept in s.kept],
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
        ops.update(str(n.meta.get(GIVEN_AS, full_type(n))) for n in graph)
    return ModelView(
        path=str(file),
        file_bytes=file.stat().st_size + sum(other.stat().st_size for other in files_of(model)),
        opset=model.opset_imports.get(""),
        producer=" ".join(part for part in (model.producer_name, model.producer_version) if part),
        inputs=_signature(v for v in model.graph.inputs if v.const_value is None),
        outputs=_signature(model.graph.outputs),
        ops=dict(sorted(ops.items(), key=lambda pair: (-pair[1], pair[0]))),
        weight_bytes=dict(weight_bytes.most_common()),
        quantized=tuple(quantizers(model)),
    )


def _signature(values: Iterable[ir.Value]) -> dict[str, str]:
    result = {}
    for value in values:
        shape = "unknown rank" if value.shape is None else _shape(list(map(_dim, value.shape)))
        kind = str(value.dtype).lower() if value.dtype else "unknown type"
        result[value.name or ""] = f"{_holder(value)}{kind} {shape}"
    return result


def _holder(value: ir.Value) -> str:
    """What stands before the tensor's type of a value that is not one tensor: ``sequence of ``, ``optional ``."""
    words, kind = "", value.type
    while isinstance(kind, (ir.SequenceType, ir.OptionalType)):
        words += "sequence of " if isinstance(kind, ir.SequenceType) else "optional "
        kind = kind.elem_type
    return words


def _shape(dims: Sequence[str]) -> str:
    """``1x3x224x224``; where a dimension has a name, which may hold an x itself, ``[batch, 3, 224, 224]``."""
    named = any(not dim.isdigit() and dim not in ("?", "N") for dim in dims)
    return f"[{', '.join(dims)}]" if named else "x".join(dims) or "scalar"


def _dim(dim: int | ir.SymbolicDim) -> str:
    return str(dim) if isinstance(dim, int) else str(dim.value) if dim.value else "?"
