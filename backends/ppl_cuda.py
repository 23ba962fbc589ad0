"""PPL.NN on CUDA, 8 bits: int8 symmetric, weights per channel, activations per tensor; a float model with a table.

Two formats. ``ppl`` is the JSON that PPQ writes for PPL.NN (``ppq/parser/ppl.py``): ``{"quant_info": {tensor: {...}},
"op_info": {node: {"data_type": "INT8"}}}``; biases are left out, as PPQ leaves out whatever has more than 8 bits.
``hash`` numbers the grids, ``dominator`` names the grid that a tensor shares. ``ranges`` is the text that MQBench
writes: ``name: value``, a line for each activation, with value = 128 scales; weights in the model are clipped to
their range, and the reader derives their scales from the largest of each channel.

The scheme, the operators and the activation functions that are fused are those of PPQ's PPLCUDAQuantizer, which
MQBench's (asymmetric) departs from. Inputs and output of a Concat share a scale, as in PPQ. Known from sources and
documents only: PPL.NN needs a CUDA device and a C++ build.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from onnxq.backend import Backend, Format, Kind, OpRule
from onnxq.calibration.weights import weight_range
from onnxq.errors import BackendError
from onnxq.file_system import write_text
from onnxq.graph.files.load_named import load_named
from onnxq.graph.files.save import save
from onnxq.graph.shapes import forget_shapes
from onnxq.graph.values import constant_array
from onnxq.qparams import QParams
from onnxq.quantized import Quantized
from onnxq.ranged import from_range
from onnxq.render.formats import FAKE_QUANTIZE
from onnxq.render.sidecar import Parts, put_together, take_apart, write_json
from onnxq.render.tables import (
    granularity,
    only_for,
    qparams_of,
    read_json,
    read_lines,
    symmetric_only,
    weights,
)
from onnxq.rows import conv_axis, conv_transpose_axis, each, gemm_axis, plain_gemm, plain_max_pool
from onnxq.spec import PerChannel, PerTensor, QuantSpec

__all__ = ["BACKEND"]

_STEPS = 128
"""Steps from 0 to the end of the range in MQBench's text."""
_ENTRY = (
    *("bit_width", "per_channel", "quant_flag", "sym", "scale", "zero_point"),
    *("tensor_min", "tensor_max", "q_min", "q_max", "hash", "dominator"),
)


def _parts(quantized: Quantized) -> Parts:
    parts = take_apart(quantized, "clipped")
    symmetric_only({**parts.activations, **parts.weights}, BACKEND.name)
    forget_shapes(parts.model)
    return parts


def _write(quantized: Quantized, path: Path) -> list[Path]:
    parts = _parts(quantized)
    plan = quantized.plan
    numbers = {**parts.activations, **parts.weights}
    grids = {name: position for position, name in enumerate(numbers, start=1)}
    roots = {site.tensor: plan.root(site).tensor for site in plan.sites if site.role == "activation"}
    info: dict[str, dict[str, Any]] = {}
    for name, qp in numbers.items():
        values: tuple[Any, ...] = (
            qp.spec.bits,
            isinstance(qp.spec.granularity, PerChannel),
            True,
            True,
            qp.scale.tolist(),
            qp.zero_point.tolist(),
            qp.lo.tolist(),
            qp.hi.tolist(),
            qp.spec.qmin,
            qp.spec.qmax,
            grids[name],
            grids.get(roots.get(name, name), grids[name]),
        )
        info[name] = dict(zip(_ENTRY, values, strict=True))
    nodes = {node: {"data_type": "INT8"} for node in (*parts.nodes, *plan.absorbed)}
    table = write_json(path.with_suffix(".json"), {"quant_info": info, "op_info": nodes})
    return [*save(parts.model, path), table]


def _read(path: Path) -> Quantized:
    model = load_named(path)
    table = path.with_suffix(".json")
    constants = weights(model, BACKEND)
    activations: dict[str, QParams] = {}
    stored: dict[str, QParams] = {}
    document = read_json(table, ["quant_info", "op_info"])
    for name, entry in document["quant_info"].items():
        if not isinstance(entry, dict) or set(entry) != set(_ENTRY) or not entry["sym"]:
            raise BackendError(f"the entry of {name!r} is not of the form {', '.join(_ENTRY)}", where=f"'{table}'")
        axis = (
            granularity(*constants[name], BACKEND, per_channel=entry["per_channel"])
            if name in constants
            else PerTensor()
        )
        spec = QuantSpec(entry["bit_width"], granularity=axis)
        qp = qparams_of(name, table, spec, entry["scale"], entry["zero_point"])
        qp = replace(qp, spec=replace(spec, narrow_range=entry["q_min"] == spec.qmin + 1))
        (stored if name in model.graph.initializers else activations)[name] = qp
    return only_for(put_together(model, BACKEND, activations, stored), document["op_info"])


def _write_ranges(quantized: Quantized, path: Path) -> list[Path]:
    parts = _parts(quantized)
    lines = [f"{name}: {float(qp.scale) * _STEPS!r}\n" for name, qp in parts.activations.items()]
    return [*save(parts.model, path), write_text(path.with_suffix(".txt"), "".join(lines))]


def _read_ranges(path: Path) -> Quantized:
    model = load_named(path)
    table = path.with_suffix(".txt")
    activations: dict[str, QParams] = {}
    for line in read_lines(table):
        name, _, text = line.rpartition(": ")
        try:
            value = float(text)
        except ValueError as error:
            raise BackendError(f"a line is not of the form 'name: value': {line!r}", where=f"'{table}'") from error
        activations[name] = qparams_of(name, table, BACKEND.activation, value, divisor=_STEPS)
    stored: dict[str, QParams] = {}
    for name, (node, position) in weights(model, BACKEND).items():
        data = node.inputs[0]
        array = constant_array(node.inputs[position])
        if array is None or data is None or data.name not in activations:
            continue
        axis = granularity(node, position, BACKEND, per_channel=True)
        spec = QuantSpec(granularity=axis)
        stored[name] = from_range(*weight_range(array, spec), spec)
    return put_together(model, BACKEND, activations, stored)


_RULES = (
    OpRule("Conv", Kind.COMPUTE, weights=(1,), weight_axis=conv_axis),
    OpRule("ConvTranspose", Kind.COMPUTE, weights=(1,), weight_axis=conv_transpose_axis),
    OpRule("Gemm", Kind.COMPUTE, weights=(1,), weight_axis=gemm_axis, when=plain_gemm),
    *each(Kind.ELEMENTWISE, "Add Mul", data=(0, 1)),
    OpRule("Concat", Kind.ELEMENTWISE, data=None, same_scale=True),
    *each(Kind.ELEMENTWISE, "Relu Clip PRelu LeakyRelu AveragePool GlobalAveragePool ReduceMean Resize"),
    OpRule("Sigmoid", Kind.ELEMENTWISE, fixed=(0.0, 1.0)),
    OpRule("MaxPool", Kind.MOVEMENT, when=plain_max_pool),
    *each(Kind.MOVEMENT, "GlobalMaxPool Split Transpose Slice Reshape Flatten"),
)

BACKEND = Backend(
    name="ppl_cuda",
    title="PPL.NN on CUDA, int8, a table",
    activation=QuantSpec(),
    weight=QuantSpec(),
    rules={rule.op: rule for rule in _RULES},
    formats={
        "ppl": Format(Quantized.fake_quantize, _write, _read, simulated=True, beside=(".json",)),
        "ranges": Format(Quantized.fake_quantize, _write_ranges, _read_ranges, simulated=True, beside=(".txt",)),
        "fake-quantize": FAKE_QUANTIZE,
    },
    bias="float",
    absorbed=frozenset({"Relu", "Clip", "Sigmoid", "LeakyRelu"}),
    drops_absorbed=False,
    weight_bits=frozenset({8}),
    act_bits=frozenset({8}),
    artifacts="model.onnx (float), model.json (PPQ) or model.txt (MQBench)",
    unverified="no runtime at hand; schema by PPQ's source",
)
