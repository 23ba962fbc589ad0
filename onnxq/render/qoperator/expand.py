"""The way back: QOperators → the float operator between DequantizeLinear and QuantizeLinear, the integers unchanged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxq.graph.domains import OF_QUANTIZERS
from onnxq.graph.edits import remove_nodes, rename_output, set_constant
from onnxq.graph.namer import Namer
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import constant_array, input_of
from onnxq.render.qoperator.builders import MOVES

__all__ = ["LAYOUTS", "Layout", "expand"]


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a QOperator has what.

    Attributes:
        op: the float operator.
        data: positions of integers, each followed by its scale and zero point unless ``scales`` says where those are.
        result: position of the scale of the result, its zero point behind it; ``None`` where the result is float.
        bias: position of an int32 bias.
        scales: positions of (scale, zero point) for each of ``data``.
        weight_axis: node → the channel axis of the second of ``data``.
        last: position of a float vector that is added at last.
    """

    op: str
    data: tuple[int, ...]
    result: int | None
    bias: int | None = None
    scales: tuple[tuple[int, int], ...] = ()
    weight_axis: Callable[[ir.Node], int] = lambda node: -1
    last: int | None = None

    def parameters(self) -> Sequence[tuple[int, int]]:
        """Positions of scale and zero point, for each of ``data``."""
        return self.scales or [(k + 1, k + 2) for k in self.data]


def _gemm_axis(node: ir.Node) -> int:
    return 0 if node.attributes.get_int("transB", 0) else 1


LAYOUTS: Mapping[str, Layout] = {
    "QLinearConv": Layout("Conv", (0, 3), 6, bias=8, weight_axis=lambda node: 0),
    "QLinearMatMul": Layout("MatMul", (0, 3), 6),
    "MatMulIntegerToFloat": Layout("MatMul", (0, 1), None, scales=((2, 4), (3, 5)), last=6),
    "QGemm": Layout("Gemm", (0, 3), 7, bias=6, scales=((1, 2), (4, 5)), weight_axis=_gemm_axis),
    "QLinearAdd": Layout("Add", (0, 3), 6),
    "QLinearMul": Layout("Mul", (0, 3), 6),
    "QLinearAveragePool": Layout("AveragePool", (0,), 3),
    "QLinearGlobalAveragePool": Layout("GlobalAveragePool", (0,), 3),
    "QLinearLeakyRelu": Layout("LeakyRelu", (0,), 3),
    "QLinearSigmoid": Layout("Sigmoid", (0,), 3),
    "QLinearSoftmax": Layout("Softmax", (0,), 3),
}
_NOT_FLOAT = frozenset({"channels_last", "opset"})
"""Attributes that the float operators lack."""


def expand(model: ir.Model) -> list[str]:
    """Write QOperators, and data movement on integers between them, as float operators between quantizers, in place.

    Args:
        model: names unique, initializers for constants.

    Returns:
        What was left as it is, and why.
    """
    return _Expander(model).run()


class _Expander:
    def __init__(self, model: ir.Model) -> None:
        self.model, self.namer = model, Namer(model)
        self.opset = model.opset_imports.get("", 0)
        self.grids: dict[ir.Value, tuple[ir.Value, ir.Value]] = {}  # integers -> scale, zero point
        self.notes: list[str] = []

    def run(self) -> list[str]:
        for node in list(all_nodes(self.model)):
            if node.domain not in OF_QUANTIZERS or node.graph is None:
                continue
            layout = LAYOUTS.get(node.op_type)
            if node.op_type == "QuantizeLinear" and _per_tensor(node.inputs[1]) and len(node.inputs) > 2:
                self._note(node.outputs[0], node.inputs[1], node.inputs[2])
            elif node.op_type == "QLinearConcat" or layout is not None:
                why = self._lacks(node, layout)
                if why:
                    self.notes.append(f"read: '{node.name}' ({node.op_type}) {why}: left as it is")
                elif layout is not None:
                    self._operator(node, layout)
                else:
                    self._concat(node)
            elif node.inputs and node.inputs[0] in self.grids:
                self._on_integers(node)
        return self.notes

    def _note(self, integers: ir.Value, scale: ir.Value | None, zero: ir.Value | None) -> None:
        if scale is not None and zero is not None:
            self.grids[integers] = (scale, zero)

    def _lacks(self, node: ir.Node, layout: Layout | None) -> str:
        if node.attributes.get_int("channels_last", 0):
            return "has channels last"
        if node.op_type == "QLinearSoftmax" and (node.attributes.get_int("opset", 13) >= 13) != (self.opset >= 13):
            return "is that of another opset"
        if layout is None:
            pairs = [(k, k + 1) for k in (0, *range(3, len(node.inputs), 3))]
        else:
            result = layout.result
            pairs = [
                *layout.parameters(),
                *([(result, result + 1)] if result is not None and input_of(node, result) else []),
            ]
        for pair in pairs:
            if any(constant_array(input_of(node, k)) is None for k in pair):
                return "has no constant scales and zero points"
        return ""

    def _operator(self, node: ir.Node, layout: Layout) -> None:
        inputs: list[ir.Value | None] = []
        for turn, (position, (scale, zero)) in enumerate(zip(layout.data, layout.parameters(), strict=True)):
            axis = layout.weight_axis(node) if turn else None
            inputs.append(self._dequantized(node, node.inputs[position], node.inputs[scale], node.inputs[zero], axis))
        bias = input_of(node, layout.bias)
        if bias is not None:
            scales = [constant_array(node.inputs[scale]) for scale, _ in layout.parameters()]
            assert scales[0] is not None and scales[1] is not None and isinstance(node.graph, ir.Graph)
            unit = np.asarray(scales[0].reshape(()) * scales[1], np.float32)
            unit = unit.reshape(()) if unit.size == 1 else unit
            made = set_constant(node.graph, self.namer, f"{bias.name}_scale", unit)
            zero_bias = set_constant(node.graph, self.namer, f"{bias.name}_zero_point", np.zeros(unit.shape, np.int32))
            inputs.append(self._dequantized(node, bias, made, zero_bias, -1))
        result = self._float(node, layout.op, inputs)
        vector = input_of(node, layout.last)
        if vector is not None:
            result = self._float(node, "Add", [result, vector], self.namer.node(f"{node.name}_bias"))
        self._finish(node, [result], [_grid_at(node, layout.result)])

    def _concat(self, node: ir.Node) -> None:
        x = node.inputs
        parts = [self._dequantized(node, x[k], x[k + 1], x[k + 2], None) for k in range(2, len(x), 3)]
        self._finish(node, [self._float(node, "Concat", parts)], [_grid_at(node, 0)])

    def _on_integers(self, node: ir.Node) -> None:
        """Data movement, a Clip or a Concat of integers of one grid."""
        first = node.inputs[0]
        assert first is not None
        grid = self.grids[first]
        if node.op_type in MOVES:
            inputs = [self._dequantized(node, first, *grid, None), *node.inputs[1:]]
        elif node.op_type == "Concat" and all(v is not None and self.grids.get(v) == grid for v in node.inputs):
            inputs = [self._dequantized(node, value, *grid, None) for value in node.inputs]
        elif node.op_type == "Clip" and all(v is None or constant_array(v) is not None for v in node.inputs[1:]):
            inputs = [self._dequantized(node, first, *grid, None)]
            inputs += [self._real(node, value, grid) for value in node.inputs[1:]]
        else:
            return
        made = ir.Node("", node.op_type, inputs, list(node.attributes.values()), num_outputs=len(node.outputs))
        made.name = node.name
        assert isinstance(node.graph, ir.Graph)
        node.graph.insert_before(node, [made])
        for result, like in zip(made.outputs, node.outputs, strict=True):
            self._describe(result, like)
        grids = [None if _are_indices(result) else grid for result in made.outputs]
        for result, like, own in zip(made.outputs, node.outputs, grids, strict=True):
            result.type = like.type if own is None else result.type
        self._finish(node, list(made.outputs), grids)

    def _real(self, node: ir.Node, bound: ir.Value | None, grid: tuple[ir.Value, ir.Value]) -> ir.Value | None:
        """A bound of a Clip in real units."""
        if bound is None:
            return None
        integer, scale, zero = constant_array(bound), constant_array(grid[0]), constant_array(grid[1])
        assert integer is not None and scale is not None and zero is not None and isinstance(node.graph, ir.Graph)
        real = (int(integer.reshape(())) - int(zero.reshape(()))) * scale.reshape(())
        return set_constant(node.graph, self.namer, f"{bound.name}_real", np.asarray(real, np.float32))

    def _dequantized(
        self, node: ir.Node, integers: ir.Value | None, scale: ir.Value | None, zero: ir.Value | None, axis: int | None
    ) -> ir.Value:
        """A DequantizeLinear of its own in front of a node."""
        assert integers is not None and scale is not None and zero is not None and isinstance(node.graph, ir.Graph)
        attributes = {}
        if axis is not None and not _per_tensor(scale):
            rank = len(integers.shape) if integers.shape is not None else 2
            attributes = {"axis": axis % rank}
        base = f"{(integers.name or '').removesuffix('_quantized')}_dequantized"
        dq = ir.node("DequantizeLinear", [integers, scale, zero], attributes, name=self.namer.node(f"{base}_node"))
        dq.outputs[0].name = self.namer.fresh(base)
        dq.outputs[0].type, dq.outputs[0].shape = ir.TensorType(ir.DataType.FLOAT), integers.shape
        node.graph.insert_before(node, [dq])
        return dq.outputs[0]

    def _float(self, node: ir.Node, op: str, inputs: Sequence[ir.Value | None], name: str | None = None) -> ir.Value:
        """The float operator in front of the node whose place it takes."""
        attributes = [a for key, a in node.attributes.items() if key not in _NOT_FLOAT and name is None]
        made = ir.Node("", op, inputs, attributes, name=name or node.name)
        assert isinstance(node.graph, ir.Graph)
        node.graph.insert_before(node, [made])
        self._describe(made.outputs[0], node.outputs[0])
        return made.outputs[0]

    def _describe(self, result: ir.Value, like: ir.Value) -> None:
        result.name = self.namer.fresh((like.name or "tensor").removesuffix("_quantized"))
        result.type = ir.TensorType(ir.DataType.FLOAT)
        result.shape = like.shape.copy() if like.shape is not None else None

    def _finish(
        self, node: ir.Node, results: Sequence[ir.Value], grids: Sequence[tuple[ir.Value, ir.Value] | None]
    ) -> None:
        """Quantizers behind the results, which take over the outputs of the node; without a grid they are float."""
        graph = node.graph
        assert isinstance(graph, ir.Graph)
        for result, output, grid in zip(results, node.outputs, grids, strict=True):
            last = result
            if grid is not None:
                name = self.namer.node(f"{result.name}_QuantizeLinear")
                quantizer = ir.node("QuantizeLinear", [result, *grid], name=name)
                graph.insert_before(node, [quantizer])
                last = quantizer.outputs[0]
                last.type = ir.TensorType(grid[1].dtype) if grid[1].dtype is not None else None
            self.grids.pop(output, None)
            rename_output(last, output)
            if grid is not None:
                self.grids[last] = grid
        remove_nodes([node])


def _are_indices(result: ir.Value) -> bool:
    """Whether a result of data movement says where numbers were, in place of them: the second one of a MaxPool."""
    node = result.producer()
    return node is not None and node.op_type == "MaxPool" and result is not node.outputs[0]


def _grid_at(node: ir.Node, position: int | None) -> tuple[ir.Value, ir.Value] | None:
    """Scale and zero point from a position on."""
    scale = input_of(node, position)
    if position is None or scale is None:
        return None
    zero = node.inputs[position + 1]
    assert zero is not None
    return scale, zero


def _per_tensor(scale: ir.Value | None) -> bool:
    array = constant_array(scale)
    return array is not None and array.size == 1
