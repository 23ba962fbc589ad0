"""Qualcomm's encodings files: quantization parameters by tensor name, versions 0.6.1, 1.0.0 and 2.0.0.

0.6.1 and 1.0.0 count in unsigned integers, ``x = (q + offset) * scale`` with ``q`` in 0 .. 2**bits - 1 and an offset
that is never positive: minus the zero point of the unsigned grid. A symmetric signed weight of 8 bits has the offset
-128, and one with a zero point counts as unsigned. 2.0.0 is written as ONNX has it: an integer type, scales, zero
points, the channel axis. Only 2.0.0 has biases (int32): it is strict, what it does not name stays float; converters of
the other two quantize biases themselves.

Source: the reader and writer of aimet-onnx 2.42 (``_encoding.py``, ``quantsim.py``), which reads all three.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from onnxq.errors import BackendError
from onnxq.qparams import QParams
from onnxq.render.sidecar import Parts
from onnxq.render.tables import float32s, qparams_of, read_json, width
from onnxq.spec import PerChannel, PerTensor, QuantSpec

__all__ = ["Tables", "Version", "parse", "to_document"]

Version = Literal["0.6.1", "1.0.0", "2.0.0"]
_VERSIONS: tuple[Version, ...] = ("0.6.1", "1.0.0", "2.0.0")

Axis = Callable[[str, int], int]
"""Name of a constant and number of its scales → channel axis."""


@dataclass(frozen=True)
class Tables:
    """Numbers by tensor name, as read from a file.

    Attributes:
        version: of the file.
        activations: graph inputs and outputs of operators.
        weights: weights and other constants.
        biases: biases.
    """

    version: str
    activations: Mapping[str, QParams]
    weights: Mapping[str, QParams]
    biases: Mapping[str, QParams]


def to_document(parts: Parts, version: Version, *, writer: str, per_channel: bool) -> dict[str, Any]:
    """The encodings of a model as a JSON document.

    Args:
        parts: the model's numbers; activations are unsigned, or symmetric.
        version: of the format.
        writer: version of onnxq.
        per_channel: whether weights have a scale for each channel where they can, for the header of 1.0.0.
    """
    head: dict[str, Any] = {"producer": {"package": "onnxq", "version": writer}, "version": version}
    if version == "2.0.0":
        numbers = [*parts.activations.items(), *parts.weights.items(), *parts.biases.items()]
        return {**head, "encodings": [_onnx(name, qp) for name, qp in numbers]}
    if version == "0.6.1":
        return {
            "version": version,
            "activation_encodings": {name: _list(qp) for name, qp in parts.activations.items()},
            "param_encodings": {name: _list(qp) for name, qp in parts.weights.items()},
        }
    arguments = {
        "activation_bitwidth": _most(parts.activations),
        "dtype": "int",
        "is_symmetric": all(qp.spec.symmetric for qp in parts.weights.values()),
        "param_bitwidth": _most(parts.weights),
        "per_channel_quantization": per_channel,
        "quant_scheme": "min_max",
    }
    return {
        **head,
        "activation_encodings": [_arrays(name, qp) for name, qp in parts.activations.items()],
        "param_encodings": [_arrays(name, qp) for name, qp in parts.weights.items()],
        "quantizer_args": arguments,
    }


def parse(path: Path, constants: set[str], axis: Axis) -> Tables:
    """Read an encodings file.

    Args:
        path: the file.
        constants: names of the model's constants; all other tensors are activations.
        axis: gives the channel axis of a constant where the version does not store it.

    Raises:
        BackendError: it cannot be read, is of another version, or holds what has no scale and zero point.
    """
    document = read_json(path, [])
    version = document.get("version")
    if version not in _VERSIONS:
        hint = f"Known are {', '.join(_VERSIONS)}"
        raise BackendError(f"encodings of version {version!r} are unknown", where=f"'{path}'", hint=hint)
    try:
        numbers = {name: _numbers(name, entry, version, axis, path) for name, entry in _entries(document, version)}
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        what = f"they are not encodings of version {version}: {type(error).__name__} {error}"
        raise BackendError(what, where=f"'{path}'") from error
    biases = {name: qp for name, qp in numbers.items() if qp.spec.bits == 32}
    weights = {name: qp for name, qp in numbers.items() if name in constants and name not in biases}
    activations = {name: qp for name, qp in numbers.items() if name not in weights and name not in biases}
    return Tables(version, activations, weights, biases)


def _entries(document: Mapping[str, Any], version: Version) -> list[tuple[str, Any]]:
    if version == "2.0.0":
        return [(entry["name"], entry) for entry in document["encodings"]]
    sections = [document["activation_encodings"], document["param_encodings"]]
    if version == "0.6.1":
        return [item for section in sections for item in section.items()]
    return [(entry["name"], entry) for section in sections for entry in section]


def _numbers(name: str, entry: Any, version: Version, axis: Axis, path: Path) -> QParams:
    """An entry as parameters; per-tensor ones of one scale."""
    if version == "2.0.0":
        kind = entry["output_dtype"]
        signed, bits = not kind.startswith("u"), width(int(kind.removeprefix("u").removeprefix("int")))
        scales = float32s(entry["y_scale"])
        zeros = np.broadcast_to(np.asarray(entry.get("y_zero_point", 0), np.float64), scales.shape)
        where = entry.get("axis")
        if "block_size" in entry:
            raise ValueError(f"{name!r} has a scale for each block")
    else:
        first = entry[0] if version == "0.6.1" else entry
        if first["dtype"].lower() != "int":
            raise ValueError(f"{name!r} is {first['dtype']}")
        bits = width(first["bitwidth" if version == "0.6.1" else "bw"])
        signed = first["is_symmetric"] == "True" if version == "0.6.1" else first["is_sym"]
        many = [(e["scale"], e["offset"]) for e in entry] if version == "0.6.1" else None
        scales, offsets = (
            (float32s([s for s, _ in many]), np.asarray([o for _, o in many], np.float64))
            if many is not None
            else (float32s(entry["scale"]), np.asarray(entry["offset"], np.float64))
        )
        zeros = np.rint(-offsets) - ((1 << (bits - 1)) if signed else 0)
        alone = len(scales) == 1 and (version == "0.6.1" or entry["enc_type"] == "PER_TENSOR")
        if alone:
            scales, zeros = scales.reshape(()), zeros.reshape(())
        where = None if alone else axis(name, len(scales))
    granularity = PerTensor() if scales.ndim == 0 else PerChannel(int(where))
    middle = 0 if signed else 1 << (bits - 1)
    symmetric = bool((zeros == middle).all()) and signed
    return qparams_of(name, path, QuantSpec(bits, signed, symmetric, granularity), scales, zeros)


def _unsigned(qp: QParams) -> tuple[Sequence[float], Sequence[float]]:
    """Scales and offsets of the unsigned grid, one each per tensor."""
    half = 1 << (qp.spec.bits - 1) if qp.spec.signed else 0
    return _floats(qp.scale), [-float(zero + half) for zero in qp.zero_point.reshape(-1)]


def _is_symmetric(qp: QParams) -> bool:
    """Whether a grid is read back as signed integers around 0; any other is one of unsigned integers."""
    return qp.spec.signed and not qp.zero_point.any()


def _list(qp: QParams) -> list[dict[str, Any]]:
    top = (1 << qp.spec.bits) - 1
    return [
        {
            "bitwidth": qp.spec.bits,
            "dtype": "int",
            "is_symmetric": str(_is_symmetric(qp)),
            "max": (top + offset) * scale,
            "min": offset * scale,
            "offset": offset,
            "scale": scale,
        }
        for scale, offset in zip(*_unsigned(qp), strict=True)
    ]


def _arrays(name: str, qp: QParams) -> dict[str, Any]:
    scale, offset = _unsigned(qp)
    return {
        "name": name,
        "dtype": "INT",
        "bw": qp.spec.bits,
        "is_sym": _is_symmetric(qp),
        "enc_type": "PER_TENSOR" if _axis(qp) is None else "PER_CHANNEL",
        "scale": list(scale),
        "offset": list(offset),
    }


def _onnx(name: str, qp: QParams) -> dict[str, Any]:
    sign = "int" if qp.spec.signed else "uint"
    entry: dict[str, Any] = {"name": name, "output_dtype": f"{sign}{qp.spec.bits}"}
    zeros, axis = [int(zero) for zero in qp.zero_point.reshape(-1)], _axis(qp)
    entry["y_scale"] = _floats(qp.scale)[0] if axis is None else _floats(qp.scale)
    if any(zeros):
        entry["y_zero_point"] = zeros[0] if axis is None else zeros
    if axis is not None:
        entry["axis"] = axis
    return entry


def _axis(qp: QParams) -> int | None:
    """The channel axis; a single channel is written as per tensor, which is all that some readers take."""
    granularity = qp.spec.granularity
    return granularity.axis if isinstance(granularity, PerChannel) and qp.scale.size > 1 else None


def _floats(scale: np.ndarray[Any, np.dtype[np.float32]]) -> list[float]:
    """float32 numbers as JSON writes them without loss."""
    return [float(s) for s in scale.reshape(-1)]


def _most(table: Mapping[str, QParams]) -> int:
    """The width that most tensors have."""
    widths = [qp.spec.bits for qp in table.values()]
    return max(set(widths), key=widths.count) if widths else 8
