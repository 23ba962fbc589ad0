"""Have nodes as many inputs as their operators declare, and attributes of their types?"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

import onnx
import onnx_ir as ir

from onnxq.errors import ModelError
from onnxq.graph.domains import MICROSOFT
from onnxq.graph.traverse import describe, with_subgraphs

__all__ = ["check_forms"]

_INTS = ("axis", "block_size", "quant_max", "quant_min")
_QUANTIZERS = frozenset(((MICROSOFT, "DequantizeLinear"), (MICROSOFT, "QuantizeLinear"), ("onnxq", "FakeQuantize")))
"""Operators that are read in domains for which onnx has no schemas."""


@dataclass(frozen=True)
class _Form:
    """What an operator declares."""

    attributes: dict[str, ir.AttributeType] = field(default_factory=dict)
    least: int = 0
    most: int = 1 << 31


def check_forms(model: ir.Model) -> None:
    """Checks inputs and attributes of all nodes whose operators declare them; the onnx checker would do so much later.

    Raises:
        ModelError: a node has too few inputs, or too many, or an attribute of another type than its operator declares.
    """
    imports = [(model.graph, model.graph.opset_imports)]
    imports += [(function.graph, function.opset_imports) for function in model.functions.values()]
    for outer, versions in imports:
        for graph in with_subgraphs(outer):
            for node in graph:
                fault = _fault(node, _form(node.op_type, node.domain, versions.get(node.domain, 1)))
                if fault is not None:
                    raise ModelError(
                        fault,
                        where=f"invalid model: {describe(node)}",
                        hint="The file is damaged, or was written by a faulty tool",
                    )


def _fault(node: ir.Node, form: _Form) -> str | None:
    if not form.least <= len(node.inputs) <= form.most:
        return f"it has {len(node.inputs)} inputs, not {form.least} to {form.most}"
    for name, attribute in node.attributes.items():
        wanted = form.attributes.get(name)
        if wanted is not None and not attribute.is_ref() and attribute.type != wanted:
            return f"its attribute '{name}' is of type {attribute.type.name}, not {wanted.name}"
    return None


@cache
def _form(op: str, domain: str, version: int) -> _Form:
    """What an operator declares; anything goes where it is not known."""
    try:
        schema = onnx.defs.get_schema(op, max_inclusive_version=version, domain=domain)
    except onnx.defs.SchemaError:
        return _Form(dict.fromkeys(_INTS, ir.AttributeType.INT), 2) if (domain, op) in _QUANTIZERS else _Form()
    kinds = {name: ir.AttributeType[str(kind.type).rpartition(".")[2]] for name, kind in schema.attributes.items()}
    return _Form(kinds, schema.min_input, schema.max_input)
