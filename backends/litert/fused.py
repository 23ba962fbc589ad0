"""Activation functions of integers that the operator in front of them computes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from onnxq.backends.litert.flat import FlatModel, FlatOperator

__all__ = ["fused"]

_FUNCTIONS = {"RELU": 1, "RELU6": 3}
"""Their numbers in the schema."""
_MAKERS = frozenset({"ADD", "CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "MUL", "SUB"})


def fused(model: FlatModel) -> FlatModel:
    """Let an operator end its integers as the RELU or RELU6 does that alone reads them, on the same grid.

    Args:
        model: left unchanged; what is fused leaves tensors that nobody reads.
    """
    reads = Counter(index for operator in model.operators for index in operator.inputs)
    reads.update(model.outputs.values())
    makers = {operator.outputs[0]: k for k, operator in enumerate(model.operators) if operator.kind in _MAKERS}
    made: dict[int, FlatOperator | None] = dict(enumerate(model.operators))
    for k, function in enumerate(model.operators):
        if function.kind not in _FUNCTIONS:
            continue
        (x,), (y,) = function.inputs, function.outputs
        grid = model.tensors[x].grid
        maker = model.operators[makers[x]] if x in makers else None
        if maker is None or grid is None or grid != model.tensors[y].grid or reads[x] > 1:
            continue
        options = {**maker.options, "fusedActivationFunction": _FUNCTIONS[function.kind]}
        made[makers[x]], made[k] = FlatOperator(maker.kind, maker.inputs, (y,), options), None
    return replace(model, operators=[operator for operator in made.values() if operator is not None])
