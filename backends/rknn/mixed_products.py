"""Float products of what is computed of a model input with that input, as a net that turns its points has them.

The builder crashes where one operand of such a product is made of integers and the other is the input, read in float by
the product and quantized by others. Of the input's integers it makes a product of integers, up to 7 steps off. So the
other operand is computed in float, which it builds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import onnx_ir as ir

from onnxq.op_rule import OpRule

__all__ = ["in_float_for_products"]

_VIEWS = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})


_ALONE = "One that no float product multiplies with a model input, see above."
"""What the target's page says of rows without a condition of their own."""
Why = Callable[[ir.Node], str | None]


def in_float_for_products(rules: Iterable[OpRule], stays: Why) -> dict[str, OpRule]:
    """Rows by operator that refuse what makes such an operand, in another shape perhaps.

    Args:
        rules: rows.
        stays: why a product of two activations stays float; None for one that is quantized.
    """
    return {rule.op: replace(rule, when=_unless(rule, stays)) for rule in rules}


def _unless(rule: OpRule, stays: Why) -> Why:
    def when(node: ir.Node) -> str | None:
        return (rule.when(node) if rule.when is not None else None) or _meets_input(node, stays)

    when.__doc__ = _ALONE if rule.when is None else rule.when.__doc__
    return when


def _meets_input(node: ir.Node, stays: Why) -> str | None:
    """Why a node stays float whose result a float product multiplies with a model input that others read, too."""
    pending = list(node.outputs)
    while pending:
        for reader, index in pending.pop().uses():
            if reader.domain != "":
                continue
            if reader.op_type in _VIEWS and index == 0:
                pending += reader.outputs
            elif reader.op_type == "MatMul" and _is_read_by_others(reader, 1 - index) and stays(reader) is not None:
                return "RKNN's builder crashes on a float product of integers with an input that others read quantized"
    return None


def _is_read_by_others(product: ir.Node, index: int) -> bool:
    """Whether an operand of a product is a model input with other readers."""
    value = product.inputs[index]
    return value is not None and value.is_graph_input() and any(use.node is not product for use in value.uses())
