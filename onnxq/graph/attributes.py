"""Have attributes the types that their operators declare?"""

from __future__ import annotations

from functools import cache

import onnx
import onnx_ir as ir

from onnxq.errors import ModelError
from onnxq.graph.traverse import describe, with_subgraphs

__all__ = ["check_attributes"]

_INTS = ("axis", "block_size", "quant_max", "quant_min")
_QUANTIZERS = frozenset(
    (("com.microsoft", "DequantizeLinear"), ("com.microsoft", "QuantizeLinear"), ("onnxq", "FakeQuantize"))
)
"""Operators that are read in domains for which onnx has no schemas."""


def check_attributes(model: ir.Model) -> None:
    """Checks the attributes of all nodes whose operators declare them; the onnx checker would do so much later.

    Raises:
        ModelError: an attribute has another type than its operator declares.
    """
    imports = [(model.graph, model.graph.opset_imports)]
    imports += [(function.graph, function.opset_imports) for function in model.functions.values()]
    for outer, versions in imports:
        for graph in with_subgraphs(outer):
            for node in graph:
                declared = _declared(node.op_type, node.domain, versions.get(node.domain, 1))
                for name, attribute in node.attributes.items():
                    wanted = declared.get(name)
                    if wanted is not None and not attribute.is_ref() and attribute.type != wanted:
                        raise ModelError(
                            f"its attribute '{name}' is of type {attribute.type.name}, not {wanted.name}",
                            where=f"invalid model: {describe(node)}",
                            hint="The file is damaged, or was written by a faulty tool",
                        )


@cache
def _declared(op: str, domain: str, version: int) -> dict[str, ir.AttributeType]:
    """The types of an operator's attributes; empty where they are not known."""
    try:
        schema = onnx.defs.get_schema(op, max_inclusive_version=version, domain=domain)
    except onnx.defs.SchemaError:
        return dict.fromkeys(_INTS, ir.AttributeType.INT) if (domain, op) in _QUANTIZERS else {}
    return {name: ir.AttributeType[str(kind.type).rpartition(".")[2]] for name, kind in schema.attributes.items()}
