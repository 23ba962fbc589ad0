"""STPU: int8, symmetric, one scale for a tensor; a float model with a JSON table of ranges.

The table is that which MQBench writes for ``BackendType.STPU``, by tensor and by node name::

    {tensor: {"min", "max"}}                   -127 scale, 127 scale
    {"<node>_weights": {"min", "max"}}         of a Conv, ConvTranspose or Gemm
    {"<node>_bias": {"alpha", "zero_point"}}   alpha = (max_w - min_w) / 254 * (max_in - min_in) / 254, zero point 0

The output of some operators also has an ``"emin"``. With e(v) the biased exponent of v as a float32 number, from 1 to
254, and 0 for 0: Conv and ConvTranspose ``e(max(sqrt(inputs of a sum) max_in max_w, max_out)) - 10``, Resize
``e(max_out) - 20``, Gemm 128. Inputs of a sum are input channels of a group times the kernel's elements.

Quantized are inputs and outputs of the operators below. A Relu or Clip is computed together with the operator in front
of it: the quantizer stands behind it, and its range is also written for the tensor in front. A Concat has one range for
all its inputs and its output, a Sigmoid the range from -1 to 1. Weights in the model are clipped to their range.

Known from MQBench's source only: no tool that reads the table was at hand. Where that source fails or mixes things up,
this is what its formulas mean: a Clip behind a convolution (there an error), weights and biases of ConvTranspose (there
taken for activations), entries that a Concat's tensors share (there one exponent overwrites the other).
"""

from __future__ import annotations

import math
from collections.abc import Container
from pathlib import Path
from typing import Any

import onnx_ir as ir

from onnxq.backend import Backend, Format, Kind, OpRule
from onnxq.errors import BackendError
from onnxq.graph.files.load_named import load_named
from onnxq.graph.files.save import save
from onnxq.graph.recognition.groups import KINDS
from onnxq.graph.shapes import forget_shapes
from onnxq.graph.traverse import all_graphs, all_nodes
from onnxq.graph.values import input_of
from onnxq.plan import Site
from onnxq.qparams import QParams
from onnxq.quantized import Quantized
from onnxq.render.formats import FAKE_QUANTIZE
from onnxq.render.reading.planned import planned
from onnxq.render.sidecar import Parts, take_apart, write_json
from onnxq.render.tables import qparams_of, read_json, symmetric_only
from onnxq.rows import nearest, plain_gemm, plain_max_pool
from onnxq.spec import QuantSpec

__all__ = ["BACKEND", "table_path"]

_SPEC = QuantSpec(signed=True, symmetric=True, narrow_range=True)
_TOP = 127
_STEPS = 254
_GEMM_EMIN = 128

Table = dict[str, dict[str, Any]]
"""Name of a tensor, or of a node's weight or bias → its entry."""


# -- the table


def table_path(model: Path) -> Path:
    """The table beside a model."""
    return model.with_name(f"{model.stem}_minmax.json")


def biased_exponent(value: float) -> int:
    """The biased exponent of a number as float32: 0 for 0, 1 below 2**-125, 254 from 2**127 on."""
    return 0 if value == 0 else min(max(math.frexp(abs(value))[1] + 126, 1), 254)


def _range(numbers: QParams) -> dict[str, Any]:
    top = _TOP * float(numbers.scale)
    return {"min": -top, "max": top}


def _emin(node: ir.Node, table: Table) -> int | None:
    """The exponent that belongs to a node's output, ``None`` where its operator has none."""
    if node.op_type == "Gemm":
        return _GEMM_EMIN
    largest = table[node.outputs[0].name or ""]["max"]
    if node.op_type == "Resize":
        return biased_exponent(largest) - 20
    if node.op_type not in ("Conv", "ConvTranspose"):
        return None
    data, weight = node.inputs[0], node.inputs[1]
    assert data is not None and weight is not None and weight.shape is not None
    dims = weight.shape.numpy()
    channels = dims[1] if node.op_type == "Conv" else dims[0] // node.attributes.get_int("group", 1)
    summed = math.sqrt(channels * math.prod(dims[2:]))
    product = summed * table[data.name or ""]["max"] * table[f"{node.name}_weights"]["max"]
    return biased_exponent(max(product, largest)) - 10


def _table(quantized: Quantized, parts: Parts) -> Table:
    """The table of what was taken apart, in the order that entries depend on each other."""
    nodes = {node.name or "": node for node in all_nodes(parts.model)}
    table = _activations(quantized, parts)
    for function, into in quantized.plan.absorbed.items():
        behind, before = nodes[function].outputs[0].name or "", nodes[into].outputs[0].name or ""
        if behind in table:
            _add(table, before, dict(table[behind]))
    for name, op in parts.nodes.items():
        _add_constants(table, nodes[name], BACKEND.rules[op], parts)
    for name in parts.nodes:
        if (emin := _emin(nodes[name], table)) is not None:
            table[nodes[name].outputs[0].name or ""]["emin"] = emin
    return table


def _activations(quantized: Quantized, parts: Parts) -> Table:
    """The ranges of activations: where a function has one, that."""
    table = {name: _range(numbers) for name, numbers in parts.activations.items()}
    known = {site.tensor: site.fixed for site in quantized.plan.sites if site.fixed is not None and not site.tied_to}
    table.update({name: {"min": low, "max": high} for name, (low, high) in known.items() if name in table})
    return table


def _add_constants(table: Table, node: ir.Node, rule: OpRule, parts: Parts) -> None:
    """The entries of what a node reads that is constant: its weight, its bias, an operand."""
    for index, value in enumerate(node.inputs):
        numbers = parts.weights.get(value.name or "") if value is not None else None
        if value is None or numbers is None:
            continue
        if index in rule.weights:
            _add(table, f"{node.name}_weights", _range(numbers))
        elif value.name not in table:
            table[value.name or ""] = _range(numbers)
    bias = input_of(node, rule.bias)
    if bias is not None and bias.name in parts.biases:
        data = node.inputs[0].name if node.inputs[0] is not None else None
        steps = [(e["max"] - e["min"]) / _STEPS for e in (table[f"{node.name}_weights"], table[data or ""])]
        _add(table, f"{node.name}_bias", {"alpha": steps[0] * steps[1], "zero_point": 0})


def _add(table: Table, key: str, entry: dict[str, Any]) -> None:
    if key in table:
        raise BackendError(f"the table would have two entries {key!r}", hint="Rename the node or the tensor")
    table[key] = entry


def _write(quantized: Quantized, path: Path) -> list[Path]:
    symmetric_only(
        {s.name: quantized.qparams[s.name] for s in quantized.plan.sites if s.name in quantized.qparams}, "STPU"
    )
    parts = take_apart(quantized, "clipped")
    table = _table(quantized, parts)
    forget_shapes(parts.model)
    return [*save(parts.model, path), write_json(table_path(path), table)]


def _why_no_entry(name: str, entry: Any, names: Container[str | None]) -> str | None:
    """What is wrong with an entry of a table that was read."""
    if name not in names:
        return f"it names {name!r}, which the model does not have"
    keys = ("alpha",) if isinstance(entry, dict) and "alpha" in entry else ("min", "max")
    if not isinstance(entry, dict) or not all(isinstance(entry.get(k), (int, float)) for k in keys):
        return f"the entry of {name!r} has no {' and '.join(keys)}"
    if "alpha" not in entry and not (entry["max"] == -entry["min"] > 0):
        return f"the range of {name!r} is not symmetric about 0"
    return None


def _read(path: Path) -> Quantized:
    """The way back; an operator without a weight whose tensors all have ranges is taken to be quantized."""
    where = f"'{table_path(path)}'"
    table = read_json(table_path(path), [])
    model = load_named(path)
    names = {v.name for node in all_nodes(model) for v in (*node.inputs, *node.outputs) if v is not None}
    names |= {v.name for graph in all_graphs(model) for v in graph.inputs}
    names |= {f"{node.name}{part}" for node in all_nodes(model) for part in ("_weights", "_bias")}
    for name, entry in table.items():
        if (why := _why_no_entry(name, entry, names)) is not None:
            raise BackendError(why, where=where)

    def find(site: Site) -> QParams | None:
        keys = [f"{e.node}_weights" for e in site.readers] if site.role == "weight" else [site.tensor]
        key, entry = next(((key, table[key]) for key in keys if key in table), ("", None))
        if entry is None:
            return None
        if "alpha" in entry:
            raise BackendError(f"the entry of {key!r} is that of a bias, and has no range", where=where)
        return qparams_of(key, table_path(path), site.spec, entry["max"], divisor=_TOP)

    return planned(model, BACKEND, find)


_RULES = (
    OpRule("Conv", Kind.COMPUTE, weights=(1,), bias=2),
    OpRule("ConvTranspose", Kind.COMPUTE, weights=(1,), bias=2),
    OpRule("Gemm", Kind.COMPUTE, weights=(1,), bias=2, when=plain_gemm),
    OpRule("Add", Kind.ELEMENTWISE, data=(0, 1)),
    OpRule("Mul", Kind.ELEMENTWISE, data=(0, 1)),
    OpRule("Concat", Kind.ELEMENTWISE, data=None, same_scale=True),
    OpRule("AveragePool", Kind.ELEMENTWISE),
    OpRule("GlobalAveragePool", Kind.ELEMENTWISE),
    OpRule("PRelu", Kind.ELEMENTWISE),
    OpRule("Sigmoid", Kind.ELEMENTWISE, fixed=(-1.0, 1.0)),
    OpRule("MaxPool", Kind.MOVEMENT, when=plain_max_pool),
    OpRule("Resize", Kind.MOVEMENT, when=nearest),
    OpRule("Flatten", Kind.MOVEMENT),
    OpRule("Reshape", Kind.MOVEMENT),
)

BACKEND = Backend(
    name="stpu",
    title="STPU, int8 and a JSON table of ranges",
    activation=_SPEC,
    weight=_SPEC,
    rules={rule.op: rule for rule in _RULES},
    formats={
        "ranges": Format(Quantized.fake_quantize, _write, _read, simulated=True, beside=("_minmax.json",)),
        "fake-quantize": FAKE_QUANTIZE,
    },
    per_channel=False,
    drops_absorbed=False,
    whole=frozenset(KINDS) - {"silu"},
    mixes=False,
    all_integers=True,
    complete_units=True,
    weight_bits=frozenset({8}),
    act_bits=frozenset({8}),
    artifacts="model.onnx (float), model_minmax.json",
    unverified="no tool at hand; schema and formulas by MQBench's source",
)
