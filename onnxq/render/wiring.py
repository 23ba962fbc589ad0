"""Nodes, names and constants put into a graph that is being rendered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.graph.namer import Namer
from onnxq.graph.values import constant_array

__all__ = ["add_initializer", "describe", "insert_behind", "numbers", "take_over_output"]


def numbers(value: ir.Value) -> NDArray[Any]:
    """The array of a constant."""
    array = constant_array(value)
    assert array is not None, f"{value.name} is not constant"
    return array


def describe(value: ir.Value, name: str, dtype: ir.DataType, shape: ir.Shape | None) -> None:
    """Give a new tensor its name, type and shape."""
    value.name = name
    value.type = ir.TensorType(dtype)
    value.shape = ir.Shape(shape.dims) if shape is not None else None


def insert_behind(value: ir.Value, nodes: Sequence[ir.Node]) -> None:
    """Put nodes right behind the producer of a tensor, or first in the graph that is given it."""
    producer = value.producer()
    if producer is not None:
        graph = producer.graph
        assert isinstance(graph, ir.Graph)
        graph.insert_after(producer, nodes)
        return
    home = value.graph
    assert isinstance(home, ir.Graph)
    home.insert_before(home[0], nodes)


def take_over_output(value: ir.Value, result: ir.Value, namer: Namer) -> None:
    """Let ``result`` be the graph output in place of ``value``, with its name, type and shape."""
    graph = value.graph
    assert isinstance(graph, ir.Graph)
    name = value.name or ""
    value.name = namer.fresh(f"{name}_float")
    result.name = name
    result.type, result.shape = value.type, value.shape
    for i, output in enumerate(graph.outputs):
        if output is value:
            graph.outputs[i] = result


def add_initializer(graph: ir.Graph, name: str, array: NDArray[np.generic], dtype: ir.DataType) -> ir.Value:
    """A new constant of a graph, of any integer or float type; of float8 its bytes are given.

    The array is kept where it is of that type already: nobody may change it from then on.
    """
    narrow = {ir.DataType.INT4: ml_dtypes.int4, ir.DataType.UINT4: ml_dtypes.uint4}
    if dtype is ir.DataType.FLOAT8E4M3FN:
        array = array.astype(np.uint8).view(ml_dtypes.float8_e4m3fn)  # its codes
    stored = array.astype(narrow.get(dtype, dtype.numpy()), copy=False)
    tensor = ir.Tensor(stored, dtype=dtype, name=name)  # ir.tensor looks longer
    value = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(array.shape), const_value=tensor)
    graph.register_initializer(value)
    return value
