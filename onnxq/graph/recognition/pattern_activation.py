"""GELU, SiLU, HardSwish and Mish: x times a squashed x, in whatever order an exporter wrote it."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from onnxq.graph.recognition.region import ELEMENTWISE, Array, backward, compute, open_values
from onnxq.graph.values import scalar

__all__ = ["match_activation"]

ANCHORS = frozenset({"Clip", "Erf", "HardSigmoid", "Min", "Sigmoid", "Tanh"})
_LIMIT = 16
_STEPS = 6
_TOLERANCE = 2e-3
"""Largest difference allowed on [-8, 8]; GELU's two forms differ by 5e-4, different functions by more than 1e-2."""

Match = tuple[str, set[ir.Node], ir.Value, ir.Value]


@functools.cache
def _functions() -> tuple[Array, tuple[tuple[str, Array], ...]]:
    """Points (65,), and the value of each known function there.

    Sources: Hendrycks and Gimpel 2016 (GELU, its tanh and sigmoid approximations), Elfwing et al. 2017 (SiLU),
    Howard et al. 2019 (HardSwish), Misra 2019 (Mish).
    """
    x = np.linspace(-8.0, 8.0, 65)
    sigmoid = 1 / (1 + np.exp(-x))
    erf = np.array([math.erf(v / math.sqrt(2)) for v in x])
    return x, (
        ("gelu", 0.5 * x * (1 + erf)),
        ("gelu", x / (1 + np.exp(-1.702 * x))),
        ("silu", x * sigmoid),
        ("hardswish", x * np.clip(x + 3, 0, 6) / 6),
        ("hardswish", x * np.clip(0.2 * x + 0.5, 0, 1)),
        ("mish", x * np.tanh(np.logaddexp(x, 0))),
    )


def match_activation(anchor: ir.Node, position: Mapping[ir.Node, int], taken: set[ir.Node]) -> Match | None:
    """The group around a squashing operator, if it is one.

    Args:
        anchor: any node.
        position: each node of the graph and its place.
        taken: nodes of groups found before.

    Returns:
        Kind, nodes, input and output.
    """
    if anchor.domain != "" or anchor.op_type not in ANCHORS or anchor in taken:
        return None
    candidates: list[ir.Value] = []
    current = anchor.outputs[0]
    for _ in range(_STEPS):
        reader = _follow(current)
        if reader is None or reader not in position or reader.op_type not in ELEMENTWISE or reader.domain != "":
            return None
        others = [value for value in reader.inputs if value is not None and value is not current]
        current = reader.outputs[0]
        if others and any(scalar(value) is None for value in others):
            if candidates or reader.op_type != "Mul" or len(others) != 1:
                return None
            candidates = _candidates(others[0])
        for start in candidates:
            found = _matches(current, start, position, taken)
            if found is not None:
                return found
    return None


def _follow(value: ir.Value) -> ir.Node | None:
    """The only reader, or else the only one that adds or multiplies."""
    readers = value.consumers()
    if len(readers) > 1:
        readers = [node for node in readers if node.op_type in ("Add", "Div", "Mul", "Sub")]
    return readers[0] if len(readers) == 1 else None


def _candidates(value: ir.Value) -> list[ir.Value]:
    """What x may be when the squashed x is multiplied by ``value``: itself, or what it is a multiple of."""
    found = [value]
    node = value.producer()
    if node is not None and node.domain == "" and node.op_type in ("Mul", "Div"):
        found += [v for i, v in enumerate(node.inputs) if v is not None and scalar(node.inputs[1 - i]) is not None]
    return found


def _matches(end: ir.Value, start: ir.Value, position: Mapping[ir.Node, int], taken: set[ir.Node]) -> Match | None:
    """What lies between two tensors, if it is one of the functions and nothing outside reads a tensor inside it."""
    nodes = backward(end, start, ELEMENTWISE, limit=_LIMIT, scalars_only=True)
    if nodes is None or nodes & taken or any(node not in position for node in nodes):
        return None
    x, functions = _functions()
    values = compute(sorted(nodes, key=position.__getitem__), {start: x})
    result = values.get(end) if values is not None else None
    if result is None or result.shape != x.shape:
        result = None if result is None or result.size != x.size else result.reshape(x.shape)
    if result is None or not np.isfinite(result).all():
        return None
    kind = next((name for name, known in functions if float(np.abs(result - known).max()) <= _TOLERANCE), None)
    if kind is None or any(value is not end for value in open_values(nodes)):
        return None
    return kind, nodes, start, end
