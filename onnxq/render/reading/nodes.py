"""Which nodes of a model that was read compute in integers, by the quantizers around them, and which stay float."""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from onnxq.backend import Backend, Kind, OpRule
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import is_constant, only_reader
from onnxq.plan import Edge, Kept, Plan
from onnxq.planning.candidates import touches_float
from onnxq.planning.table_rows import positions, row

__all__ = ["sort_nodes"]

_MADE = "Identity"
"""Keeps two quantizers in a row apart, and names a model output: no arithmetic."""


def sort_nodes(model: ir.Model, backend: Backend, plan: Plan) -> Plan:
    """A plan with what its sites make of every node with float arithmetic.

    In integers runs a node whose data and weights are quantized, and its output where the target's kernel writes
    integers. An activation function between such a node and the quantizer is computed with it, and is not counted.

    Args:
        model: the float model inside.
        backend: says which inputs are data, and what needs a quantized output.
        plan: its sites are those of the quantizers that were found.
    """
    found = _Found(plan)
    quantized: dict[str, str] = {}
    stored: dict[str, str] = {}
    kept: list[Kept] = []
    for node in all_nodes(model):
        name = node.name or ""
        if not touches_float(node) or name in found.between:
            continue
        roles = found.roles(node)
        reason = found.why_float(node, backend) if roles else "not quantized in the model given"
        if roles == {"weight"} and not (reason == "" and backend.weights_alone):
            stored[name] = node.op_type
            reason = "only its weights are integers in the model given"
        if not reason:
            quantized[name] = node.op_type
        elif node.op_type != _MADE:
            kept.append(Kept(name, node.op_type, reason))
    return replace(plan, quantized=quantized, stored=stored, kept_float=tuple(kept))


class _Found:
    """The quantizers of a plan.

    Attributes:
        edges: inputs of nodes that read something quantized.
        tensors: activations that are quantized.
        passed: tensors that hold a quantized one's values moved about.
        between: activation functions between a node in integers and its quantizer.
    """

    def __init__(self, plan: Plan) -> None:
        self.edges: dict[Edge, str] = {edge: site.role for edge, site in plan.by_edge().items()}
        self.tensors = {site.tensor for site in plan.sites if site.role == "activation"}
        self.passed: set[str] = set()
        self.between: set[str] = set()

    def roles(self, node: ir.Node) -> set[str]:
        """What of a node's inputs is quantized."""
        found = ((index, self.edges.get(Edge(node.name or "", index))) for index in range(len(node.inputs)))
        return {role or "activation" for index, role in found if role or self._is_passed(node.inputs[index])}

    def why_float(self, node: ir.Node, backend: Backend) -> str:
        """Why a node that reads something quantized computes in float; nothing where it does not."""
        rule = row(backend, node)
        if rule is not None and rule.kind is Kind.WEIGHT_ONLY:
            return f"{node.op_type} has no integer kernel on {backend.name}"
        if not self._reads_quantized(node, rule):
            return "not all that it reads is quantized in the model given"
        needed = not backend.inputs_only and (rule is None or rule.needs_output(node))
        functions = {value: _function_behind(value, backend) for value in self._open(node)}
        ends = (value if f is None else f.outputs[0] for value, f in functions.items())
        if needed and any(map(self._is_read_in_float, ends)):
            return "its output is not quantized in the model given"
        self.between.update(function.name or "" for function in functions.values() if function is not None)
        if not needed and rule is not None and (rule.kind is Kind.MOVEMENT or rule.shares(node)):
            self.passed.update(value.name or "" for value in node.outputs)
        return ""

    def _reads_quantized(self, node: ir.Node, rule: OpRule | None) -> bool:
        """Whether all floats that a node reads are quantized: of one without a rule, all that are no constants."""
        every = (position for position, value in enumerate(node.inputs) if not is_constant(value))
        for position in positions(rule, node) if rule is not None else every:
            value = node.inputs[position]
            if value is None or value.dtype not in (None, ir.DataType.FLOAT):
                continue
            if Edge(node.name or "", position) not in self.edges and not self._is_passed(value):
                return False
        return True

    def _open(self, node: ir.Node) -> list[ir.Value]:
        """Outputs without a quantizer right behind them."""
        return [value for value in node.outputs if value.name not in self.tensors]

    def _is_read_in_float(self, value: ir.Value) -> bool:
        return value.name not in self.tensors and bool(value.uses() or value.is_graph_output())

    def _is_passed(self, value: ir.Value | None) -> bool:
        return value is not None and value.name in self.passed


def _function_behind(value: ir.Value, backend: Backend) -> ir.Node | None:
    """The activation function that alone reads a tensor, and that the target computes together with its producer."""
    function = only_reader(value)
    return function if function is not None and function.op_type in backend.absorbed else None
