"""The older artifact, for the converter to xir: a float model and a table of scales by tensor name.

``model.onnx`` holds the weights as they are, within the range of their grid, and none of the factors that simulate the
DPU; ``model.json`` beside it is ``{"vitis": {tensor: {"scale": 2**-p}}}`` for activations, weights and biases alike.

Source: MQBench, ``mqbench/deploy/deploy_linear.py`` (backend ``vitis``). Its converter is part of a docker image that
was not at hand: known from documents only.
"""

from __future__ import annotations

import math
from pathlib import Path

import onnx_ir as ir

from onnxq.backend import Backend, Format
from onnxq.backends.vitis.rewrites import rewrite, without_factors
from onnxq.errors import BackendError
from onnxq.graph.files.load import load
from onnxq.graph.files.save import save
from onnxq.graph.namer import unique_names
from onnxq.graph.passes.constants import lift_constants
from onnxq.graph.shapes import forget_shapes, infer_shapes
from onnxq.graph.traverse import all_constants, all_nodes
from onnxq.graph.values import input_of
from onnxq.planning.table_rows import row
from onnxq.qparams import QParams
from onnxq.quantized import Quantized
from onnxq.render.sidecar import put_together, take_apart, write_json
from onnxq.render.tables import qparams_of, read_json

__all__ = ["FIX_POSITIONS"]


def write(quantized: Quantized, path: Path) -> list[Path]:
    """Write the float model and its table.

    Args:
        quantized: left unchanged.
        path: of the model; the table has its stem and the ending ``.json``.

    Raises:
        BackendError: a tensor is quantized in two ways.
        OutputError: a file cannot be written.
    """
    parts = take_apart(quantized, "clipped")
    without_factors(parts.model)
    forget_shapes(parts.model)
    tables = (parts.activations, parts.weights, parts.biases)
    scales = {name: {"scale": float(numbers.scale)} for table in tables for name, numbers in table.items()}
    table = write_json(path.with_suffix(".json"), {"vitis": scales})
    files = save(parts.model, path)
    return [*files, table]


def read(path: Path) -> Quantized:
    """What :func:`write` has written, with the factors that simulate the DPU put back.

    Raises:
        BackendError: there is no table, or it is not one of fix positions for this model.
    """
    from onnxq.backends.vitis import BACKEND

    beside = path.with_suffix(".json")
    numbers: dict[str, QParams] = {}
    for name, entry in read_json(beside, ["vitis"])["vitis"].items():
        if not isinstance(entry, dict) or "scale" not in entry:
            raise BackendError(f"the entry of {name!r} has no scale", where=f"'{beside}'")
        qp = numbers[name] = qparams_of(name, beside, BACKEND.activation, entry["scale"])
        if qp.scale.ndim or not 0 < qp.scale < math.inf or math.frexp(qp.scale)[0] != 0.5:
            raise BackendError(f"the scale {qp.scale} of {name!r} is not a power of two", where=f"'{beside}'")
    model = load(path)
    unique_names(model)
    lift_constants(model)
    infer_shapes(model)
    rewrite(model)
    constants = all_constants(model).keys()
    biases = _biases(model, BACKEND) & constants & numbers.keys()
    activations = {name: qp for name, qp in numbers.items() if name not in constants}
    weights = {name: qp for name, qp in numbers.items() if name in constants and name not in biases}
    return put_together(model, BACKEND, activations, weights, {name: numbers[name] for name in biases})


def _biases(model: ir.Model, backend: Backend) -> set[str]:
    """Constants that a layer reads as its bias."""
    found = set()
    for node in all_nodes(model):
        rule = row(backend, node)
        value = input_of(node, rule.bias) if rule is not None else None
        if value is not None and value.name:
            found.add(value.name)
    return found


FIX_POSITIONS = Format(Quantized.fake_quantize, write, read, simulated=True, beside=(".json",))
"""A float model and its fix positions."""
