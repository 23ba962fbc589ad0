"""Which nodes could run in integers on the target, and what keeps each of the others float."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.backend import Kind, OpRule
from onnxq.graph.traverse import full_type
from onnxq.graph.values import is_constant
from onnxq.integer_operators import QUANTIZERS, is_in_integers
from onnxq.planning.carry import carry, without_kernel
from onnxq.planning.question import Decisions, Question
from onnxq.planning.specs import activation_spec
from onnxq.planning.table_rows import positions, row
from onnxq.planning.weightless import ALREADY, reads_quantized

__all__ = ["find_candidates", "touches_float"]

_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE})


def find_candidates(asked: Question) -> Decisions:
    """Every node with float arithmetic, in ``rules`` with its row or in ``kept`` with the reason."""
    found = Decisions()
    inside = {n: group.kind for group in asked.groups if group.kind in asked.backend.whole for n in group.nodes}
    for node in asked.nodes:
        if node.op_type in QUANTIZERS:
            continue
        if is_in_integers(node.op_type):
            found.kept[node] = ALREADY
            continue
        if not touches_float(node):
            continue
        verdict = _why_not(asked, found, node, inside.get(node))
        if isinstance(verdict, str):
            found.kept[node] = verdict
        else:
            found.rules[node] = verdict
    carry(asked, found)
    while narrow := without_kernel(found):
        for node in narrow:
            bits = found.carried[node].bits
            found.kept[node] = f"{node.op_type} has no integer kernel for {bits} bits on {asked.backend.name}"
            del found.rules[node]
        carry(asked, found)
    return found


def _why_not(asked: Question, decided: Decisions, node: ir.Node, group: str | None) -> str | OpRule:
    """Reason why a node stays float, or its rule."""
    rule, backend = row(asked.backend, node), asked.backend
    if (why := asked.selection.why_out(node)) is not None:
        return why
    if node.name and node.name in asked.keep_float:
        return asked.keep_float[node.name]
    if reads_quantized(node):
        return ALREADY
    touched = (value for value in (*node.inputs, *node.outputs) if value is not None)
    known = rule is not None or (node.domain == "" and node.op_type in backend.absorbed)
    if known and node.op_type != "Cast" and any(value.dtype is ir.DataType.DOUBLE for value in touched):
        return "it computes in float64: export the model in float32 to quantize it"
    if not backend.bodies and node.graph is not asked.model.graph:
        return f"inside of an If, Loop or Scan, whose tensors the artifact of {backend.name} cannot name"
    if group is not None:
        return f"part of a {group}, kept whole"
    if rule is None and node.domain == "" and node.op_type in backend.absorbed:
        if node.inputs[0] is not None and node.inputs[0].producer() is None:
            return "there is no operator before it that it could be fused with"
        return "the operator before it runs in float, so it cannot be fused"
    if rule is None:
        return f"{full_type(node)} is not among the operators that {backend.name} quantizes"
    if (why := _why_no_float32(node, rule)) is not None:
        return why
    constants = [p for p in rule.weights if p < len(node.inputs) and is_constant(node.inputs[p])]
    if rule.kind in (Kind.COMPUTE, Kind.WEIGHT_ONLY) and not constants:
        product = backend.rules.get(f"{node.op_type}:product")
        if product is None:
            return _why_no_weight(node, rule)
        rule = product
    if (bits := activation_spec(asked, decided, node, node.outputs[0]).bits) not in rule.act_bits:
        return f"{node.op_type} has no integer kernel for {bits} bits on {backend.name}"
    if rule.data is None and all(is_constant(v) for v in node.inputs if v is not None):
        return "all its inputs are constants"
    if rule.when is not None and (why := rule.when(node)) is not None:
        return why
    return rule


def _why_no_float32(node: ir.Node, rule: OpRule) -> str | None:
    """Which input to quantize is of another type than float32, or of none that is known."""
    for value in (node.inputs[position] for position in positions(rule, node)):
        if value is not None and value.dtype is None:
            return f"the type of input {value.name!r} is unknown"
        if value is not None and value.dtype is not ir.DataType.FLOAT:
            return f"input {value.name!r} is {str(value.dtype).lower()}, not float32"
    return None


def _why_no_weight(node: ir.Node, rule: OpRule) -> str:
    for value in (node.inputs[p] for p in rule.weights if p < len(node.inputs)):
        if value is not None and value.is_graph_input() and value.const_value is not None:
            return f"its weight {value.name!r} is also a graph input, which may replace it: remove it from the inputs"
    return "its weight is computed at run time"


def touches_float(node: ir.Node) -> bool:
    """Whether a node reads floats and makes some, of any width."""
    return any(v is not None and v.dtype in _FLOATS for v in node.inputs) and any(
        v.dtype in _FLOATS or v.dtype is None for v in node.outputs
    )
