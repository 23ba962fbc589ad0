"""How the weights and activations of a node are quantized: the target's specs, changed by what the options ask for."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import onnx_ir as ir

from onnxq.backend import Backend, Kind, OpRule
from onnxq.for_processor import reduces
from onnxq.options import Options
from onnxq.options.selection import Selection, with_symmetry
from onnxq.planning.question import Decisions, Question
from onnxq.planning.table_rows import WeightRow
from onnxq.planning.weightless import reads_quantized
from onnxq.spec import USUAL_BITS, WIDE, PerChannel, PerTensor, QuantSpec, Scheme

__all__ = ["activation_spec", "bias_spec", "default_spec", "weight_at", "weight_spec"]


def weight_spec(
    asked: Question, decided: Decisions, node: ir.Node, rule: OpRule, position: int, value: ir.Value
) -> QuantSpec:
    """The spec of the weight ``value`` that a node reads at ``position``."""
    per_channel = asked.backend.per_channel if asked.options.per_channel is None else asked.options.per_channel
    wanted = asked.selection.per_channel(per_channel, node, value)
    axis = rule.weight_axis(node, position) if rule.weight_axis and wanted else None
    granularity = PerTensor() if axis is None else PerChannel(axis)
    own = rule.weight or asked.backend.weight
    wide = node in decided.stored and node.name in asked.wide
    bits = WIDE if wide else _least_bits(asked, decided, asked.weight_bits, node)
    spec = asked.selection.weight(replace(own, bits=bits, granularity=granularity), node, value)
    spec = spec if spec.bits in rule.weight_bits else replace(spec, bits=own.bits)
    spec = weight_at(asked.backend, asked.options, asked.selection, WeightRow(node, value, rule), spec)
    in_float = node in decided.stored and not reads_quantized(node)  # else onnxruntime takes its integer kernel
    return replace(spec, reduced=False) if in_float else spec


def weight_at(target: Backend, options: Options, selection: Selection, read: WeightRow, spec: QuantSpec) -> QuantSpec:
    """The spec of a weight, of its width, with zero points where the target has them and nothing asks for others, and
    of a reduced range where sums of products with it overflow."""
    own = read.rule.weight or target.weight
    spec = replace(spec, signed=own.signed, symmetric=own.symmetric, narrow_range=own.narrow_range)
    if read.rule.kind is not Kind.COMPUTE:
        return spec
    if spec.bits not in target.asymmetric_weights:
        return replace(spec, reduced=_overflows(target, options, spec))
    symmetric = selection.weight_symmetric(options.weight_symmetric, read.node, read.value)
    symmetric = not target.moves_weights if symmetric is None else symmetric
    return spec if symmetric else replace(spec, signed=False, symmetric=False, narrow_range=False)


def _overflows(target: Backend, options: Options, spec: QuantSpec) -> bool:
    """Whether sums of products with a weight are to be kept from overflowing."""
    bytes_alone = {spec.bits, options.act_bits or target.activation.bits} == {USUAL_BITS}
    if not bytes_alone or not spec.signed or spec.scheme is not Scheme.UNIFORM:
        return False
    return reduces(target, options)


def activation_spec(
    asked: Question, decided: Decisions, node: ir.Node, value: ir.Value, own: QuantSpec | None = None
) -> QuantSpec:
    """The spec of the tensor ``value`` that a node reads or writes; ``own``: what its row says instead of the target's.

    The width is that of :func:`_least_bits` where the node reads the tensor, and at least that of ``decided.widths``;
    numbers that a node only hands on are quantized as :mod:`onnxq.planning.carry` has found.
    """
    spec = decided.carried.get(node)
    if spec is None:
        bits = _least_bits(asked, decided, asked.act_bits, node) if value in node.inputs else asked.act_bits
        spec = asked.selection.activation(_asked_of_all(asked, own or asked.backend.activation, bits), node, value)
        spec = replace(spec, signed=False) if asked.backend.unsigned else spec
    least = decided.widths.get(value, 0)
    return spec if spec.bits >= least else replace(spec, bits=least)


def default_spec(asked: Question) -> QuantSpec:
    """The spec of activations of which the options and the target's rows say nothing in particular."""
    spec = _asked_of_all(asked, asked.backend.activation, asked.act_bits)
    return replace(spec, signed=False) if asked.backend.unsigned else spec


def _asked_of_all(asked: Question, spec: QuantSpec, bits: int) -> QuantSpec:
    return _changed(spec, bits, asked.options.range, asked.options.symmetric)


@lru_cache(maxsize=256)  # asked once for each tensor that a node reads or writes, with a handful of answers
def _changed(spec: QuantSpec, bits: int, method: str, symmetric: bool | None) -> QuantSpec:
    spec = replace(spec, bits=bits, range=method)
    return spec if symmetric is None else with_symmetry(spec, symmetric)


def bias_spec(weight: QuantSpec, bias: ir.Value) -> QuantSpec:
    """The spec of a bias whose scale is that of the data times that of the weight: 32 bits, as fine as the weight's."""
    if isinstance(weight.granularity, PerChannel) and bias.shape is not None:
        return QuantSpec(bits=32, granularity=PerChannel(len(bias.shape) - 1))
    return QuantSpec(bits=32)


def _least_bits(asked: Question, decided: Decisions, bits: int, node: ir.Node) -> int:
    """The width asked for, or that of the model's first and last layers where the target gives them more."""
    least = asked.backend.first_last_bits
    if least is None or bits >= least or node not in decided.rules:
        return bits
    first = any(v is not None and v.is_graph_input() for v in node.inputs)
    return least if first or decided.output(node).is_graph_output() else bits
