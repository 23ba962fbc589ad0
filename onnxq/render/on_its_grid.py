"""Weights stored as numbers of their grid, for renderings that round them again when they run."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.graph.namer import Namer
from onnxq.graph.values import only_reader
from onnxq.qparams import fake_quantize
from onnxq.render.reading.parameters import constant_parameters
from onnxq.render.wiring import add_initializer, numbers

__all__ = ["stored_on_grid"]


def stored_on_grid(node: ir.Node, namer: Namer) -> ir.Value:
    """The weight that a call of ``onnxq::FakeQuantize`` reads, with the numbers that the call rounds it to.

    It keeps its name, so that writing a model again and again gives the same names, except where others read the
    numbers as they were.

    Args:
        node: the call; its first input is a constant, which is changed where nothing else reads it.
        namer: gives a second constant its name.
    """
    graph, weight = node.graph, node.inputs[0]
    assert isinstance(graph, ir.Graph) and weight is not None
    given = numbers(weight)
    rounded = fake_quantize(given, constant_parameters(node)).astype(given.dtype, copy=False)
    if np.array_equal(rounded, given):
        return weight
    if only_reader(weight) is node:
        weight.const_value = ir.tensor(rounded, name=weight.name)
        return weight
    dtype = weight.dtype or ir.DataType.FLOAT
    return add_initializer(graph, namer.fresh(f"{weight.name}_rounded"), rounded, dtype)
