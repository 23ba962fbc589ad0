"""Which nodes of a target's plan stay float, for want of numbers that the model given should have, and why."""

from __future__ import annotations

from collections.abc import Set

from onnxq.deploying.functions import kept_between
from onnxq.deploying.given_numbers import GivenNumbers
from onnxq.deploying.units import open_units
from onnxq.plan import Edge, Plan
from onnxq.render.reading.planned import reading

__all__ = ["lacking"]

_A_CONSTANT = "a constant that it reads"


def lacking(given: GivenNumbers, unquantized: Set[tuple[str, Edge | None]], plan: Plan) -> dict[str, str]:
    """Node → why it stays float: what it reads has no numbers, or such as the target refuses.

    Args:
        given: the numbers of the model given.
        unquantized: tensors that are read past their quantizer, and by whom.
        plan: one of the target, which may still quantize these nodes.
    """
    source, target = given.source, given.target
    numbers, _ = given.of(plan)
    edges = ((site.tensor, edge) for site in plan.sites for edge in site.readers)
    lacks = {edge.node: tensor for tensor, edge in edges if (tensor, edge) in unquantized}
    lacks |= reading(plan, numbers)
    known, complete = {site.tensor for site in source.plan.sites if site.role == "activation"}, target.complete_units
    lacks |= open_units(source.model, plan, numbers, known=known, in_float=given.in_float, complete=complete)
    constants = {node for node, tensor in lacks.items() if tensor in source.model.graph.initializers}
    several = len(constants) > 1  # biases of many layers are one line

    def reason(node: str, tensor: str) -> str:
        if tensor in given.refused:
            return f"{tensor!r}: {given.refused[tensor]}"
        name = _A_CONSTANT if several and node in constants else f"tensor {tensor!r}"
        return f"{name} is not quantized in the model given"

    kept = kept_between(source.model, plan, numbers, target, given.quantizes)
    return kept | {node: reason(node, tensor) for node, tensor in lacks.items()}
