"""Which nodes could run in integers on the target, and what keeps each of the others float."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.backend import Backend, Kind, OpRule
from onnxq.graph.traverse import full_type
from onnxq.graph.values import input_of, is_constant
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
        verdict = _verdict(asked, found, node, inside.get(node))
        if isinstance(verdict, str):
            found.kept[node] = verdict
        else:
            found.rules[node] = verdict
    carry(asked, found)
    while narrow := without_kernel(found):
        for node in narrow:
            found.kept[node] = _why_no_bits(asked.backend, node, found.carried[node].bits)
            del found.rules[node]
        carry(asked, found)
    return found


def _verdict(asked: Question, decided: Decisions, node: ir.Node, group: str | None) -> str | OpRule:
    """Reason why a node stays float, or its rule."""
    rule = row(asked.backend, node)
    if (why := _why_left(asked, node, group, named=rule is not None)) is not None:
        return why
    if rule is None:
        return _why_no_row(asked.backend, node)
    if (why := _why_no_float32(node, rule)) is not None:
        return why
    found = _by_its_weights(asked.backend, node, rule)
    if isinstance(found, str):
        return found
    why = _why_no_kernel(asked, decided, node, found)
    return found if why is None else why


def _why_left(asked: Question, node: ir.Node, group: str | None, *, named: bool) -> str | None:
    """What keeps a node float whatever its row says: the user, the model as it came, where it stands.

    Args:
        asked: the question.
        node: touches floats.
        group: the kind of the group that the target keeps whole and that it is part of.
        named: the target's table has a row for it.
    """
    backend = asked.backend
    if (why := asked.selection.why_out(node)) is not None:
        return why
    if node.name and node.name in asked.keep_float:
        return asked.keep_float[node.name]
    if reads_quantized(node):
        return ALREADY
    touched = (value for value in (*node.inputs, *node.outputs) if value is not None)
    known = (named or _is_absorbable(backend, node)) and node.op_type != "Cast"
    if known and any(value.dtype is ir.DataType.DOUBLE for value in touched):
        return "it computes in float64: export the model in float32 to quantize it"
    if not backend.bodies and node.graph is not asked.model.graph:
        return f"inside of an If, Loop or Scan, whose tensors the artifact of {backend.name} cannot name"
    return f"part of a {group}, kept whole" if group is not None else None


def _is_absorbable(backend: Backend, node: ir.Node) -> bool:
    """Whether a target computes a function together with the operator before it."""
    return node.domain == "" and node.op_type in backend.absorbed


def _why_no_row(backend: Backend, node: ir.Node) -> str:
    """Why a node that no row speaks of stays float."""
    if not _is_absorbable(backend, node):
        return f"{full_type(node)} is not among the operators that {backend.name} quantizes"
    if node.inputs[0] is not None and node.inputs[0].producer() is None:
        return "there is no operator before it that it could be fused with"
    return "the operator before it runs in float, so it cannot be fused"


def _by_its_weights(backend: Backend, node: ir.Node, rule: OpRule) -> str | OpRule:
    """The rule for the weights that a node has: that of a product where they are computed, or why there is none."""
    constants = [p for p in rule.weights if is_constant(input_of(node, p))]
    if rule.kind not in (Kind.COMPUTE, Kind.WEIGHT_ONLY) or constants:
        return rule
    return backend.rules.get(f"{node.op_type}:product") or _why_no_weight(node, rule)


def _why_no_kernel(asked: Question, decided: Decisions, node: ir.Node, rule: OpRule) -> str | None:
    """What the kernel of a rule does not take of a node; None where it takes it."""
    bits = activation_spec(asked, decided, node, node.outputs[0]).bits
    if bits not in rule.act_bits:
        return _why_no_bits(asked.backend, node, bits)
    if rule.data is None and all(is_constant(v) for v in node.inputs if v is not None):
        return "all its inputs are constants"
    return rule.when(node) if rule.when is not None else None


def _why_no_bits(backend: Backend, node: ir.Node, bits: int) -> str:
    return f"{node.op_type} has no integer kernel for {bits} bits on {backend.name}"


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
