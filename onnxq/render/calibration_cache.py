"""Ranges of activations beside a float ONNX model, for TensorRT up to version 10: calibration cache and JSON.

TensorRT quantizes such a model by itself: activations with the ranges given, int8 and symmetric, and weights for each
output channel with their largest magnitude. The weights in the model written lie on that grid already, so TensorRT
finds the integers that onnxq chose. A tensor without a range stays float, and with it, as TensorRT says, "any layer
consuming or producing" it unless it vanishes in a fused kernel. TensorRT 11 has no such quantization any more.

The cache is text::

    TRT-100300-EntropyCalibration2
    images: 3c010a14

A header, then for each tensor its name and its scale (largest magnitude / 127) as eight hexadecimal digits of a
big-endian float32; ``7f800000`` (infinity) stands for a tensor that has none. The version in the header must be that
of the TensorRT that reads the cache, else it calibrates anew: 10.3.0 is 100300, 8.6.1 is 8601. With ``trtexec``:
``--onnx=model.onnx --int8 --calib=model.cache``.

The JSON holds largest magnitudes, for a program that calls ``ITensor.set_dynamic_range(-v, v)``, under the two names
that such programs look for::

    {"tensorrt": {"blob_range": {"images": 1.0}}, "act_quant_info": {"images": 1.0}}
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from onnxq.backend import Backend
from onnxq.calibration.weights import weight_range
from onnxq.errors import BackendError
from onnxq.file_system import write_text
from onnxq.graph.files.save import save
from onnxq.graph.traverse import all_constants, all_graphs, all_nodes
from onnxq.graph.values import constant_array
from onnxq.options import Options
from onnxq.plan import Plan
from onnxq.planning.planner import settled_plan
from onnxq.prepare import Prepared
from onnxq.qparams import QParams
from onnxq.quantized import Quantized
from onnxq.ranged import from_range
from onnxq.render.sidecar import Parts, take_apart, write_json
from onnxq.render.tables import float32s

__all__ = ["read_cache", "read_ranges", "write_cache", "write_ranges"]

_HEADER = re.compile(r"TRT-\d+-(EntropyCalibration2?|MinMaxCalibration|LegacyCalibration)\s*")
_LINE = re.compile(r"(?P<name>.+): *(?P<scale>[0-9a-fA-F]{8})\s*")
_CONSTANT = "(Unnamed Layer* "
"""How names begin that TensorRT gives to tensors that ONNX does not name."""


def write_cache(quantized: Quantized, path: Path, version: int) -> list[Path]:
    """Write the model, its weights on their grids, and ``<stem>.cache``.

    Args:
        quantized: left unchanged.
        path: of the model.
        version: of TensorRT, as a number.

    Raises:
        BackendError: a tensor is quantized in two ways.
        OutputError: a file cannot be written.
    """
    parts = take_apart(quantized, "grid")
    lines = [f"TRT-{version}-EntropyCalibration2"]
    lines += [f"{name}: {struct.pack('>f', scale).hex()}" for name, scale in _scales(parts).items()]
    files = save(parts.model, path)
    return [*files, write_text(path.with_suffix(".cache"), "\n".join(lines) + "\n")]


def write_ranges(quantized: Quantized, path: Path) -> list[Path]:
    """Write the model, its weights on their grids, and ``<stem>.json``.

    Raises:
        BackendError: a tensor is quantized in two ways.
        OutputError: a file cannot be written.
    """
    parts = take_apart(quantized, "grid")
    ranges = {name: 127.0 * scale for name, scale in _scales(parts).items()}
    files = save(parts.model, path)
    document = {"tensorrt": {"blob_range": ranges}, "act_quant_info": ranges}
    return [*files, write_json(path.with_suffix(".json"), document)]


def read_cache(path: Path, backend: Backend) -> Quantized:
    """Import a calibration cache, onnxq's or TensorRT's own.

    Args:
        path: of the float model; the cache has the same name and the ending ``.cache``.
        backend: the target; its rules say what is quantized of the tensors that have a scale.

    Raises:
        BackendError: there is no such file, or it is no calibration cache of this model.
    """
    where = path.with_suffix(".cache")
    lines = _text(where).splitlines()
    if not lines or not _HEADER.fullmatch(lines[0]):
        raise BackendError("this is not a calibration cache: its first line is not 'TRT-...'", where=f"'{where}'")
    scales: dict[str, float] = {}
    for number, line in enumerate(lines[1:], 2):
        if not line.strip():
            continue
        found = _LINE.fullmatch(line)
        if found is None:
            raise BackendError(f"{line!r} is not a tensor with a scale", where=f"'{where}' line {number}")
        scales[found["name"]] = struct.unpack(">f", bytes.fromhex(found["scale"]))[0]
    return _together(path, where, backend, scales)


def read_ranges(path: Path, backend: Backend) -> Quantized:
    """Import dynamic ranges in either form, or both.

    Args:
        path: of the float model; the ranges have the same name and the ending ``.json``.
        backend: as for :func:`read_cache`.

    Raises:
        BackendError: there is no such file, or it holds no ranges of this model.
    """
    where = path.with_suffix(".json")
    try:
        document = json.loads(_text(where))
        table = document["tensorrt"]["blob_range"] if "tensorrt" in document else document["act_quant_info"]
        scales = {str(name): float(float32s(float(amax), 127.0)) for name, amax in table.items()}
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise BackendError("this is not a table of dynamic ranges", where=f"'{where}'") from error
    return _together(path, where, backend, scales)


def _scales(parts: Parts) -> dict[str, float]:
    return {name: float(numbers.scale) for name, numbers in parts.activations.items()}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BackendError(f"cannot be read: {error}", where=f"'{path}'") from error


def _together(path: Path, where: Path, backend: Backend, scales: Mapping[str, float]) -> Quantized:
    """What the target's rules make of a model and scales; nodes that lack one stay float."""
    options = Options()
    prepared = Prepared(path, options, as_scaled=True)
    model, notes = prepared.for_target(backend, options)
    names = {v.name for graph in all_graphs(model) for v in graph.inputs}
    names |= {v.name for n in all_nodes(model) for v in n.outputs}
    strange = [name for name in scales if name not in names and not name.startswith(_CONSTANT)]
    if scales and len(strange) == len(scales):
        raise BackendError(f"none of its tensors is in the model, {strange[0]!r} for one", where=f"'{where}'")
    if strange:
        notes.append(f"{len(strange)} tensors of '{where.name}' are not in the model: {', '.join(strange[:3])} ...")
    if any(scale < 0 or math.isnan(scale) for scale in scales.values()):
        raise BackendError("a scale is negative or not a number", where=f"'{where}'")
    usable = {name: scale for name, scale in scales.items() if 0 < scale < math.inf}

    def lacking(plan: Plan) -> dict[str, str]:
        return {
            edge.node: f"'{where.name}' has no scale of tensor {plan.root(site).tensor!r}"
            for site in plan.sites
            if plan.root(site).role == "activation" and plan.root(site).tensor not in usable
            for edge in site.readers
        }

    plan = settled_plan(model, backend, options, lacking)
    constants = all_constants(model)
    numbers: dict[str, QParams] = {}
    for site in plan.sites:
        root = plan.root(site)
        if root.role == "activation":
            numbers[site.name] = QParams(site.spec, float32s(usable[root.tensor]), np.zeros((), np.int64))
        else:
            array = constant_array(constants[root.tensor])
            assert array is not None
            numbers[site.name] = from_range(*weight_range(array, site.spec), site.spec)
    said = (*prepared.notes, *notes)
    return Quantized(model, plan, numbers, backend, notes=said)
