"""How much of a model's work is quantized: what ranks models where onnxruntime's time says nothing of the target.

The work of a node is its multiply-accumulates, and one for each element that it makes.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from onnxq.calibration.sizes import sizes_on
from onnxq.calibration.statistics import Statistics
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import is_constant, size_along
from onnxq.plan import Plan
from onnxq.planning.macs import multiply_accumulates, size_of

__all__ = ["quantized_share"]


def quantized_share(model: ir.Model, plan: Plan, statistics: Statistics) -> float:
    """Share of the work of all nodes with float arithmetic that runs in integers, or in another narrow type.

    Args:
        model: the float model that the plan speaks of; left unchanged.
        plan: what of it is quantized. Weights that are only stored as integers do not count.
        statistics: its kept sample of median size gives the shapes; without one those in the model do.

    Returns:
        0 to 1; 0 of a model without float arithmetic.
    """
    sizes = sizes_on(model, statistics)
    done = plan.quantized.keys() | plan.absorbed.keys()
    known = done | {kept.node for kept in plan.kept_float}
    work = {node.name: _work(node, sizes) for node in all_nodes(model) if node.name in known}
    return sum(work[name] for name in work if name in done) / max(sum(work.values()), 1)


def _work(node: ir.Node, sizes: Mapping[str, int]) -> int:
    products = _of_product(node, sizes) if node.op_type == "MatMul" else 0
    return products + multiply_accumulates(node, sizes) + sum(size_of(value, sizes) for value in node.outputs)


def _of_product(node: ir.Node, sizes: Mapping[str, int]) -> int:
    """Multiply-accumulates of a product of two activations, as far as a fixed size next to the inner one tells."""
    one, other = node.inputs
    if one is None or other is None or is_constant(one) or is_constant(other):
        return 0
    inner, columns = size_along(one, -1), size_along(other, -1) or 0
    return size_of(node.outputs[0], sizes) * inner if inner else size_of(one, sizes) * columns
