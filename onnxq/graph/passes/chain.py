"""Nodes that take the place of one."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from numpy.typing import ArrayLike

from onnxq.graph.edits import set_constant, stand_for
from onnxq.graph.namer import Namer
from onnxq.graph.values import input_of

__all__ = ["Chain"]

_AXES_AS_INPUT = {"ReduceSum": 13}
"""Opset from which on a reduction reads its axes; 18 for the others."""


class Chain:
    """Puts nodes in front of one, of which the last gives what it gives.

    Attributes:
        node: the one.
        opset: of the model.
        x: its first input.
        made: the nodes, in order.
    """

    def __init__(self, node: ir.Node, opset: int, namer: Namer) -> None:
        assert isinstance(node.graph, ir.Graph) and node.inputs[0] is not None
        self.node, self.opset, self.x = node, opset, node.inputs[0]
        self.made: list[ir.Node] = []
        self._graph, self._namer = node.graph, namer

    def input(self, index: int) -> ir.Value | None:
        """An input of the node; None where it is left out."""
        return input_of(self.node, index)

    def put(
        self, op: str, *inputs: ir.Value | None, dtype: ir.DataType | None = None, **attributes: ir.Attr
    ) -> ir.Value:
        """Put a node; its output.

        Args:
            op: operator of the standard domain.
            inputs: of it; None for one that is left out.
            dtype: of its output, where that is another than of the first input of the node replaced.
            attributes: of it.
        """
        name = self._namer.node(f"{self.node.name}_{op}")
        made = ir.node(op, list(inputs), attributes=attributes or None, name=name)
        made.outputs[0].name = self._namer.fresh(f"{self.node.outputs[0].name}_{op}")
        made.outputs[0].type = self.x.type if dtype is None else ir.TensorType(dtype)
        stand_for(made, [self.node])
        self._graph.insert_before(self.node, [made])
        self.made.append(made)
        return made.outputs[0]

    def reduce(self, op: str, x: ir.Value, *axes: int) -> ir.Value:
        """Put a reduction over some axes, which stay with a size of 1; its output."""
        if self.opset < _AXES_AS_INPUT.get(op, 18):
            return self.put(op, x, axes=ir.AttrInt64s("axes", axes))
        return self.put(op, x, self.integers(*axes))

    def number(self, value: float) -> ir.Value:
        """A float32 number."""
        return self.constant("number", np.asarray(value, np.float32))

    def integers(self, *values: int) -> ir.Value:
        """A row of int64."""
        return self.constant("integers", np.asarray(values, np.int64))

    def constant(self, name: str, array: ArrayLike) -> ir.Value:
        """An initializer, named after the node."""
        return set_constant(self._graph, self._namer, f"{self.node.name}_{name}", np.asarray(array))
