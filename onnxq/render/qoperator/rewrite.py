"""A QDQ model → QOperators, node by node, in place."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from onnxq.graph.domains import MICROSOFT
from onnxq.graph.edits import remove_nodes, rename_output, replace_value, set_constant
from onnxq.graph.namer import Namer
from onnxq.graph.passes.prune import remove_dead
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import constant_array, is_stored, only_reader
from onnxq.render.limits import bounds
from onnxq.render.qoperator.builders import BUILDERS, MOVES, may_move
from onnxq.render.qoperator.units import (
    Grid,
    NoQOperatorError,
    Unit,
    grid_behind,
    grid_of,
    grid_of_quantizer,
    same_grid,
)

__all__ = ["rewrite"]

_QUANTIZERS = ("QuantizeLinear", "DequantizeLinear")
_INTEGER_OPSET = 12
"""From here on Clip and MaxPool take 8-bit integers."""


def rewrite(model: ir.Model, stay: Collection[str] = ()) -> dict[str, str]:
    """Let integers run through QOperators instead of being dequantized and quantized around each float one.

    Args:
        model: a QDQ model, changed in place.
        stay: names of nodes that compute in float, between quantizers too.

    Returns:
        Node name → why it is no QOperator, for other nodes that read dequantized integers and stay.
    """
    return _Rewriter(model, stay).run()


class _Rewriter:
    def __init__(self, model: ir.Model, stay: Collection[str]) -> None:
        self.model, self.stay = model, stay
        self.namer = Namer(model)
        self.opset = model.opset_imports.get("", 0)
        self.kept: dict[str, str] = {}

    def run(self) -> dict[str, str]:
        for node in list(all_nodes(self.model)):
            if node.graph is None or node.op_type in _QUANTIZERS or node.domain != "":
                continue
            if node.name in self.stay:
                continue
            if not any(grid_of(value) is not None for value in node.inputs):
                continue
            try:
                self._replace(node)
            except NoQOperatorError as reason:
                self.kept[node.name or ""] = str(reason)
        self._join()
        remove_dead(self.model)
        if any(node.domain == MICROSOFT for node in all_nodes(self.model)):
            self.model.opset_imports[MICROSOFT] = 1
        return self.kept

    def _replace(self, node: ir.Node) -> None:
        if any(g is not None and _is_signed_activation(g) for g in map(grid_of, node.inputs)):
            raise NoQOperatorError("int8 activations, slow on x86")
        if node.op_type in MOVES:
            self._move(node)
        elif node.op_type in BUILDERS:
            self._compute(node)
        else:
            raise NoQOperatorError("onnxruntime has no QOperator for it")

    def _compute(self, node: ir.Node) -> None:
        result = node.outputs[0]
        target = grid_behind(result)
        if target is not None and target.clip is not None and self.opset < _INTEGER_OPSET:
            raise NoQOperatorError(f"opset {self.opset} has no Clip of integers")
        made = BUILDERS[node.op_type](Unit(node, self.namer, self.opset, target))
        assert isinstance(node.graph, ir.Graph)
        node.graph.insert_before(node, [made])
        if target is None:  # float leaves it
            biased = self._bias_behind(node, made)
            rename_output(made.outputs[0], biased.outputs[0] if biased is not None else result)
            remove_nodes([biased, node] if biased is not None else [node])
            return
        last = made.outputs[0]
        if target.clip is not None:
            last = self._clip(made, target.clip, target.grid)
        rename_output(last, target.node.outputs[0])
        remove_nodes([n for n in (target.node, target.clip, node) if n is not None])

    def _bias_behind(self, node: ir.Node, made: ir.Node) -> ir.Node | None:
        """The Add of a constant vector behind a matrix product of float result, whose bias it becomes."""
        add = only_reader(node.outputs[0]) if made.op_type == "MatMulIntegerToFloat" else None
        if add is None or add.op_type != "Add" or add.domain != "" or add.graph is not node.graph:
            return None
        weight, product = node.inputs[1], node.outputs[0]
        other = add.inputs[1] if add.inputs[0] is product else add.inputs[0]
        bias = constant_array(other)
        if bias is None or weight is None or weight.shape is None or product.shape is None or len(weight.shape) < 2:
            return None
        if bias.ndim < 1 or bias.ndim > len(product.shape) or bias.shape[-1] != weight.shape[-1]:
            return None
        if bias.size != bias.shape[-1] or bias.dtype != np.float32:
            return None
        assert isinstance(node.graph, ir.Graph) and other is not None
        vector = (
            other if bias.ndim == 1 else set_constant(node.graph, self.namer, f"{other.name}_row", bias.reshape(-1))
        )
        made.resize_inputs(7)
        made.replace_input_with(6, vector)
        return add

    def _clip(self, made: ir.Node, clip: ir.Node, grid: Grid) -> ir.Value:
        """A Relu or Clip on integers: rounding keeps order, so it is a Clip to the integers of its bounds."""
        scale, zero = (_scalar(v) for v in (grid.scale, grid.zero))
        info = np.iinfo(grid.dtype.numpy())
        ends = [np.rint(np.float32(end) / np.float32(scale)) + zero for end in bounds(clip)]
        low, high = (np.clip(end, info.min, info.max).astype(grid.dtype.numpy()) for end in ends)
        graph, base = made.graph, clip.outputs[0].name
        assert isinstance(graph, ir.Graph)
        _describe(made.outputs[0], self.namer.fresh(f"{made.name}_quantized"), grid.dtype, clip.outputs[0].shape)
        limits = [
            set_constant(graph, self.namer, f"{base}_{n}", np.asarray(v)) for n, v in (("min", low), ("max", high))
        ]
        node = ir.node("Clip", [made.outputs[0], *limits], name=clip.name)
        graph.insert_after(made, [node])
        return node.outputs[0]

    def _move(self, node: ir.Node) -> None:
        """Let a node move integers; behind outputs that are read in float they are dequantized."""
        grid = grid_of(node.inputs[0])
        if grid is None:
            raise NoQOperatorError("its input is float")
        if grid.axis is not None:
            raise NoQOperatorError("its input has a scale for each channel")
        if grid.dtype not in MOVES[node.op_type]:
            raise NoQOperatorError(f"onnxruntime has no kernel for {grid.dtype.name.lower()}")
        if not may_move(node):
            raise NoQOperatorError("its output holds more than elements of its input")
        if node.op_type == "MaxPool" and self.opset < _INTEGER_OPSET:
            raise NoQOperatorError(f"opset {self.opset} has no MaxPool of integers")
        targets = [grid_behind(value) for value in node.outputs]
        same = [t is not None and t.clip is None and same_grid(t.grid, grid) for t in targets]
        if not any(same):
            if any(targets):
                raise NoQOperatorError("its output has another scale than its input")
            return  # float leaves here
        made = ir.Node(
            node.domain,
            node.op_type,
            [grid.integers, *node.inputs[1:]],
            list(node.attributes.values()),
            num_outputs=len(node.outputs),
            name=node.name,
        )
        graph = node.graph
        assert isinstance(graph, ir.Graph)
        graph.insert_before(node, [made])
        removed = [node]
        for value, result, target, equal in zip(node.outputs, made.outputs, targets, same, strict=True):
            if target is not None and equal:
                rename_output(result, target.node.outputs[0])
                removed.append(target.node)
            elif value.uses() or value.is_graph_output():
                _describe(result, self.namer.fresh(f"{value.name}_quantized"), grid.dtype, value.shape)
                dq = ir.node("DequantizeLinear", list(grid), name=self.namer.node(f"{value.name}_DequantizeLinear"))
                dq.replace_input_with(0, result)
                graph.insert_before(node, [dq])
                rename_output(dq.outputs[0], value)
            elif node.op_type == "MaxPool":
                result.name = ""  # the indices
            else:  # no piece of a Split may be left out
                _describe(result, self.namer.fresh(f"{value.name}_quantized"), grid.dtype, value.shape)
        remove_nodes(removed)

    def _join(self) -> None:
        """Take out quantizers that give the integers that were dequantized in front of them."""
        for node in list(all_nodes(self.model)):
            before = grid_of(node.inputs[0]) if node.op_type == "QuantizeLinear" else None
            after = grid_of_quantizer(node) if before is not None else None
            if before is None or after is None or not same_grid(before, after) or node.outputs[0].is_graph_output():
                continue
            replace_value(node.outputs[0], before.integers)
            remove_nodes([node])


def _is_signed_activation(grid: Grid) -> bool:
    return grid.dtype is ir.DataType.INT8 and not is_stored(grid.integers)


def _scalar(value: ir.Value) -> float:
    array = constant_array(value)
    assert array is not None
    return float(array.reshape(()))


def _describe(value: ir.Value, name: str, dtype: ir.DataType, shape: ir.Shape | None) -> None:
    value.name = name
    value.type = ir.TensorType(dtype)
    value.shape = shape.copy() if shape is not None else None
