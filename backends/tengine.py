"""Tengine uint8 (``quant_tool_uint8``): a float model with a scale file, all tensors uint8 asymmetric per tensor.

The scale file has a line ``name scale zero_point`` for each activation. The tool makes weights (uint8) and biases
(int32, ``scale_x * scale_w``) by itself, from the smallest and the largest weight; the weights in the model are such
that it finds the numbers chosen here (:mod:`onnxq.render.tengine_weights`). The converter fuses a convolution with
the Relu or Clip behind it, so the tensor between them carries the numbers of the tensor behind. Where one node alone
reads what a Relu, Clip, MaxPool, Slice, Flatten, Reshape or Squeeze reads, the tool gives that tensor the numbers of
the node's output, and so does this target. Softmax is 1/255.

The tool makes every tensor uint8: what this table keeps float would have no scale there, see ``onnxq check``. It leaves
constant operands of Add, Mul ... and the weights of a MatMul as they are; a MatMul of two axes becomes a Gemm.

Known from Tengine's sources (``tools/quantize``, ``tools/convert_tool/onnx``) only: the tools are C++ programs.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from onnxq.backend import Backend, Format, Kind, OpRule
from onnxq.checks.findings import Finding
from onnxq.errors import BackendError
from onnxq.file_system import write_text
from onnxq.graph.edits import stand_for
from onnxq.graph.files.load_named import load_named
from onnxq.graph.files.save import save
from onnxq.graph.note import Note
from onnxq.graph.passes.lone_norms import lone_norms
from onnxq.graph.shapes import forget_shapes
from onnxq.graph.traverse import all_constants, all_graphs, all_nodes
from onnxq.graph.values import constant_array, input_of, is_constant, rank_of
from onnxq.options import Options
from onnxq.plan import Plan
from onnxq.qparams import QParams
from onnxq.quantized import Quantized
from onnxq.render.formats import FAKE_QUANTIZE
from onnxq.render.sidecar import put_together, take_apart
from onnxq.render.tables import qparams_of, read_lines, rename_blanks, require_no_blanks, unsigned, weighted
from onnxq.render.tengine_weights import as_the_tool_sees, for_the_tool, of_the_tool
from onnxq.rows import each, plain_gemm, plain_max_pool
from onnxq.spec import QuantSpec

__all__ = ["BACKEND"]

_INHERIT = frozenset({"Flatten", "Reshape", "Squeeze", "Clip", "Slice", "MaxPool", "Relu"})
_CUTS = frozenset({"Clip", "MaxPool", "Relu", "Slice"})
"""Of those, what may give less than the range of what they read."""
_PASSES = frozenset({"Identity", "Cast", "Shape", "Constant", "ArgMax", "ArgMin", "NonZero"})


def _rewrite(model: ir.Model) -> list[Note]:
    """MatMul of two axes with constant weights → Gemm, which becomes a FullyConnected; normalizations alone → Conv."""
    require_no_blanks(model)
    notes = lone_norms(model)
    changed = 0
    for node in all_nodes(model):
        if node.op_type == "MatMul" and node.domain == "" and is_constant(node.inputs[1]):
            ranks = [rank_of(v) or 0 for v in node.inputs]
            if ranks == [2, 2]:
                stand_for(node, [node])
                node.op_type = "Gemm"
                changed += 1
    gemms = [Note("tengine", "", f"{changed} MatMul are written as Gemm: FullyConnected")] if changed else []
    return [*notes, *gemms]


def _adjust(model: ir.Model, plan: Plan, numbers: MutableMapping[str, QParams]) -> list[str]:
    """Numbers as the tool makes them: inherited by inputs, weights by its own formula, biases by the product."""
    _inherit(model, plan, numbers)
    constants = all_constants(model)
    for site in plan.sites:
        array = constant_array(constants.get(site.tensor)) if site.role == "weight" else None
        if array is not None and site.name in numbers:
            numbers[site.name] = for_the_tool(array, numbers[site.name])
    for site in plan.sites:
        if site.role == "bias" and site.factors is not None and site.name in numbers:
            scale = np.asarray(numbers[site.factors[0]].scale * numbers[site.factors[1]].scale, np.float32)
            numbers[site.name] = replace(numbers[site.name], scale=scale)
    return []


def _inherit(model: ir.Model, plan: Plan, numbers: MutableMapping[str, QParams]) -> None:
    """Give what some operators alone read the numbers of what they write, in place."""
    sites: dict[str, list[str]] = {}
    for site in plan.sites:
        if site.role == "activation" and site.name in numbers:
            sites.setdefault(site.tensor, []).append(site.name)
    for node in reversed(list(all_nodes(model))):
        source = node.inputs[0] if node.op_type in _INHERIT and node.inputs else None
        given = sites.get(node.outputs[0].name or "", [])
        if source is not None and len(source.uses()) == 1 and given:
            for name in sites.get(source.name or "", []):
                numbers[name] = replace(numbers[given[0]], spec=numbers[name].spec)


def _lacks(model: ir.Model, options: Options) -> list[Finding]:
    """Nodes that the tool would give tensors without a scale."""
    found: list[Finding] = []
    for node in all_nodes(model):
        floats = any(v.dtype is ir.DataType.FLOAT for v in node.outputs)
        rule = BACKEND.rules.get(node.op_type) if node.domain == "" else None
        if not floats or node.op_type in _PASSES:
            continue
        why = "Tengine's converter has no such operator" if rule is None else rule.when and rule.when(node)
        if why:
            hint = "The uint8 tool makes every tensor uint8; cut the model before this node"
            found.append(Finding("warning", f"node '{node.name}' ({node.op_type})", why, hint))
    for value in model.graph.outputs:
        readers = [use.node for use in value.uses()]
        if len(readers) == 1 and readers[0].op_type in _CUTS and value.dtype is ir.DataType.FLOAT:
            what = (
                f"the uint8 tool gives it the range of the {readers[0].op_type} after it, and cuts off what is beyond"
            )
            found.append(Finding("warning", f"output {value.name!r}", what, "Give it a second reader, or none"))
    return found


def _write(quantized: Quantized, path: Path) -> list[Path]:
    parts = take_apart(quantized, "float")
    nodes = {node.name: node for node in all_nodes(parts.model)}
    table = dict(parts.activations)
    for function in quantized.plan.absorbed:
        node = nodes[function]
        behind = table.get(node.outputs[0].name or "")
        if behind is not None and node.inputs[0] is not None:
            table[node.inputs[0].name or ""] = behind
    _write_weights(parts.model, parts.weights)
    order = [v.name or "" for graph in all_graphs(parts.model) for v in graph.inputs]
    order += [v.name or "" for node in all_nodes(parts.model) for v in node.outputs]
    renamed = rename_blanks(parts.model)
    lines = [_line(renamed.get(name, name), unsigned(table[name])) for name in order if name in table]
    forget_shapes(parts.model)
    return [*save(parts.model, path), write_text(path.with_suffix(".scale"), "".join(lines))]


def _write_weights(model: ir.Model, numbers: Mapping[str, QParams]) -> None:
    constants = all_constants(model)
    for name, qp in numbers.items():
        value = constants[name]
        array = constant_array(value)
        assert array is not None
        made = as_the_tool_sees(array, qp)
        if made is None:
            raise BackendError(
                f"quant_tool_uint8 cannot be made to choose scale {float(qp.scale):g} and zero point "
                f"{int(qp.zero_point)} for weight {name!r}",
                hint="It knows only the smallest and the largest weight: quantize the float model for this target",
            )
        value.const_value = ir.tensor(made, name=name)


def _line(name: str, qp: QParams) -> str:
    return f"{name} {np.float32(qp.scale)!s} {int(qp.zero_point)}\n"


def _read(path: Path) -> Quantized:
    model = load_named(path)
    table = path.with_suffix(".scale")
    activations: dict[str, QParams] = {}
    for line in read_lines(table):
        name, _, rest = line.partition(" ")
        try:
            scale, zero = float(rest.split()[0]), float(rest.split()[-1])
        except (ValueError, IndexError) as error:
            raise BackendError(f"a line is not 'name scale zero_point': {line!r}", where=f"'{table}'") from error
        activations[name] = qparams_of(name, table, BACKEND.activation, scale, zero)
    stored: dict[str, QParams] = {}
    biases: dict[str, QParams] = {}
    for node, position in weighted(model, BACKEND):
        rule, data, weight = BACKEND.rules[node.op_type], node.inputs[0], node.inputs[position]
        array = constant_array(weight)
        if array is None or weight is None or data is None or data.name not in activations or rule.when is None:
            continue
        if rule.when(node) is not None:
            continue
        step, middle = of_the_tool(array)
        stored[weight.name or ""] = QParams(BACKEND.weight, np.asarray(step), np.asarray(middle, np.int64))
        bias = input_of(node, rule.bias)
        if bias is not None and is_constant(bias):
            product = np.asarray(activations[data.name or ""].scale * step, np.float32)
            biases[bias.name or ""] = QParams(QuantSpec(bits=32), product, np.zeros((), np.int64))
    return put_together(model, BACKEND, activations, stored, biases)


def _varied(node: ir.Node) -> str | None:
    """One whose weights are not all equal: the tool divides by their range."""
    array = constant_array(node.inputs[1])
    equal = array is not None and (not array.size or array.min() == array.max())
    return "all its weights are equal, and quant_tool_uint8 divides by their range" if equal else None


def _fully_connected(node: ir.Node) -> str | None:
    """A Gemm that is x @ w + b, of weights that are not all equal."""
    return plain_gemm(node) or _varied(node)


def _product(node: ir.Node) -> str | None:
    """A product of two activations; one of two axes with a weight becomes a Gemm."""
    constant = any(is_constant(value) for value in node.inputs)
    return "quant_tool_uint8 leaves the weights of a MatMul of three axes float" if constant else None


_RULES = (
    OpRule("Conv", Kind.COMPUTE, weights=(1,), bias=2, when=_varied),
    OpRule("ConvTranspose", Kind.COMPUTE, weights=(1,), bias=2, when=_varied),
    OpRule("Gemm", Kind.COMPUTE, weights=(1,), bias=2, when=_fully_connected),
    OpRule("MatMul", Kind.ELEMENTWISE, data=(0, 1), when=_product),
    *each(Kind.ELEMENTWISE, "Add Sub Mul Div Max Min Mean Concat", data=None),
    *each(Kind.ELEMENTWISE, "Relu Clip LeakyRelu PRelu Elu Selu HardSwish Gelu Softplus LogSoftmax"),
    *each(Kind.ELEMENTWISE, "AveragePool GlobalAveragePool Resize Pad InstanceNormalization LRN Reciprocal"),
    *each(Kind.ELEMENTWISE, "Pow Exp Log Sqrt Abs Neg Floor Ceil Cos Acos Asin Atan"),
    *each(Kind.ELEMENTWISE, "ReduceMean ReduceMax ReduceMin ReduceSum ReduceProd ReduceL2 ReduceSumSquare"),
    *each(Kind.ELEMENTWISE, "ReduceLogSum ReduceLogSumExp"),
    *each(Kind.ELEMENTWISE, "Sigmoid HardSigmoid Softmax", fixed=(0.0, 1.0)),
    OpRule("Tanh", Kind.ELEMENTWISE),
    OpRule("MaxPool", Kind.MOVEMENT, when=plain_max_pool),
    *each(Kind.MOVEMENT, "Flatten Reshape Squeeze Unsqueeze Slice Split Transpose DepthToSpace Gather Expand Tile"),
)

BACKEND = Backend(
    name="tengine",
    title="Tengine uint8, a scale file",
    activation=QuantSpec(signed=False, symmetric=False),
    weight=QuantSpec(signed=False, symmetric=False),
    rules={rule.op: rule for rule in _RULES},
    formats={
        "tengine": Format(Quantized.fake_quantize, _write, _read, simulated=True, beside=(".scale",)),
        "fake-quantize": FAKE_QUANTIZE,
    },
    per_channel=False,
    weight_zero_points="beyond",
    constants="none",
    drops_absorbed=False,
    whole=frozenset(),
    mixes=False,
    all_integers=True,
    complete_units=True,
    weight_bits=frozenset({8}),
    act_bits=frozenset({8}),
    rewrite=_rewrite,
    adjust=_adjust,
    lacks=_lacks,
    artifacts="model.onnx (float), model.scale",
    next_step="tm_convert_tool -f onnx -m MODEL.onnx -o MODEL.tmfile"
    " && quant_tool_uint8 -m MODEL.tmfile -o MODEL_u8.tmfile -i ./ -f MODEL.scale",
    unverified="quant_tool_uint8 is a C++ program; its arithmetic by its source",
)
