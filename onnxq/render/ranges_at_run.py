"""Layers whose weights are stored as integers, computed in integers with ranges of activations taken at each run.

The operators are those that onnxruntime 1.31 has kernels for: DynamicQuantizeLinear and MatMulInteger or ConvInteger of
the standard, with the scales multiplied behind them (onnxruntime makes one kernel of all that), DynamicQuantizeLSTM and
QAttention of its own domain.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.graph.domains import MICROSOFT
from onnxq.graph.edits import remove_nodes, rename_output, set_constant
from onnxq.graph.namer import Namer
from onnxq.graph.passes.prune import remove_dead
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import constant_array, input_of, is_constant

__all__ = ["take_ranges_at_run", "unsaid"]


_OWN = {"LSTM": "DynamicQuantizeLSTM", "Attention": "QAttention"}
"""Operators that another of onnxruntime's takes the place of, with the attributes that both have."""
_ALIKE = {
    "LSTM": ["activation_alpha", "activation_beta", "activations", "clip", "direction", "hidden_size", "input_forget"],
    "Attention": [
        "do_rotary",
        "mask_filter_value",
        "num_heads",
        "past_present_share_buffer",
        "scale",
        "unidirectional",
    ],
}


def unsaid(node: ir.Node) -> str | None:
    """Why onnxruntime's own operator in integers cannot stand for a node: an attribute that it does not have.

    Zero is what such an attribute means where it is absent: it need not be said.
    """
    if node.op_type not in _OWN:
        return None
    others = [name for name in node.attributes if name not in _ALIKE[node.op_type]]
    lost = [name for name in others if node.attributes[name].value != 0]
    return f"onnxruntime's {_OWN[node.op_type]} has no attribute {lost[0]!r}, which is set" if lost else None


def take_ranges_at_run(model: ir.Model, names: Collection[str]) -> set[str]:
    """Rewrite layers, in place; the last operator of each has the layer's name.

    Args:
        model: a rendered QDQ model.
        names: of Conv, Gemm, MatMul, LSTM and Attention. Of these, such are rewritten whose weights are all constant
            8-bit integers of zero point 0 behind a DequantizeLinear, and whose attributes can all be said.

    Returns:
        The names of those rewritten.
    """
    writer = _Writer(model)
    wanted = {node.name: node for node in all_nodes(model) if node.name in names}
    done = {name for name, node in wanted.items() if name and writer.rewrite(node)}
    remove_dead(model)
    return done


class _Writer:
    def __init__(self, model: ir.Model) -> None:
        self.model, self.namer = model, Namer(model)
        self.made: dict[tuple[ir.Value, ir.Graph], ir.Node] = {}
        self.turned: dict[ir.Value, ir.Value] = {}

    def rewrite(self, node: ir.Node) -> bool:
        """Whether a node was one of those, and now is in integers."""
        if unsaid(node) is not None:
            return False
        how = {"Conv": self._conv, "Gemm": self._gemm, "MatMul": self._matmul}.get(node.op_type)
        if how is not None and (stored := _stored(node, 1)) is not None:
            self._take_over(node, how(node, *stored))
        elif node.op_type == "LSTM" and (w := _stored(node, 1)) is not None and (r := _stored(node, 2)) is not None:
            self._lstm(node, w, r)
        elif node.op_type == "Attention" and (stored := _stored(node, 1)) is not None:
            self._attention(node, *stored)
        else:
            return False
        return True

    def _matmul(self, node: ir.Node, weight: ir.Value, scale: NDArray[np.float32]) -> ir.Node:
        return self._scaled(node, "MatMulInteger", weight, scale)

    def _gemm(self, node: ir.Node, weight: ir.Value, scale: NDArray[np.float32]) -> ir.Node:
        if node.attributes.get_int("transB", 0) == 1:
            weight = self._transposed(weight, (1, 0))
        product = self._scaled(node, "MatMulInteger", weight, scale)
        bias = input_of(node, 2)
        return product if bias is None else self._op(node, "Add", [product.outputs[0], bias])

    def _conv(self, node: ir.Node, weight: ir.Value, scale: NDArray[np.float32]) -> ir.Node:
        spatial = len(weight.shape) - 2 if weight.shape is not None else 0
        product = self._scaled(node, "ConvInteger", weight, scale.reshape(scale.shape + (1,) * spatial * scale.ndim))
        bias = input_of(node, 2)
        if bias is None:
            return product
        shape = set_constant(self._home(node), self.namer, f"{node.name}_shape", np.array([-1] + [1] * spatial))
        return self._op(node, "Add", [product.outputs[0], self._op(node, "Reshape", [bias, shape]).outputs[0]])

    def _scaled(self, node: ir.Node, op: str, weight: ir.Value, scale: NDArray[np.float32]) -> ir.Node:
        """The product in integers, then in float times both scales."""
        data, step, zero = self._quantized(node)
        attributes = dict(node.attributes) if op == "ConvInteger" else {}
        product = self._op(node, op, [data, weight, zero], attributes, dtype=ir.DataType.INT32)
        cast = self._op(node, "Cast", [product.outputs[0]], {"to": ir.AttrInt64("to", int(ir.DataType.FLOAT))})
        factor = self._op(node, "Mul", [step, self._constant(node, "scale", scale)])
        return self._op(node, "Mul", [cast.outputs[0], factor.outputs[0]])

    def _lstm(
        self, node: ir.Node, w: tuple[ir.Value, NDArray[np.float32]], r: tuple[ir.Value, NDArray[np.float32]]
    ) -> None:
        inputs = [*node.inputs, *[None] * (8 - len(node.inputs))]
        for position, (weight, scale) in ((1, w), (2, r)):
            directions = int(weight.shape.numpy()[0]) if weight.shape is not None else 1
            scale = np.tile(scale, (directions,) + (1,) * scale.ndim)
            inputs[position] = self._transposed(weight, (0, 2, 1))
            inputs += [
                self._constant(node, f"scale_{position}", scale),
                self._constant(node, f"zero_point_{position}", np.zeros(scale.shape, np.int8)),
            ]
        self._replace(node, inputs)

    def _attention(self, node: ir.Node, weight: ir.Value, scale: NDArray[np.float32]) -> None:
        data, step, zero = self._quantized(node)
        rest = [*node.inputs[2:], None, None, None][:3]  # bias, mask, past
        w_step = self._constant(node, "scale", scale)
        w_zero = self._constant(node, "zero_point", np.zeros(scale.shape, np.int8))
        self._replace(node, [data, weight, rest[0], step, w_step, rest[1], zero, w_zero, rest[2]])

    # -- pieces

    def _quantized(self, node: ir.Node) -> tuple[ir.Value, ir.Value, ir.Value]:
        """What a node reads first as uint8, with scale and zero point; once for all readers in a graph."""
        data, graph = node.inputs[0], self._home(node)
        assert data is not None
        if (data, graph) not in self.made:
            made = ir.node("DynamicQuantizeLinear", [data], num_outputs=3)
            made.name = self.namer.node(f"{data.name}_DynamicQuantizeLinear")
            kinds = (("quantized", ir.DataType.UINT8), ("scale", ir.DataType.FLOAT), ("zero_point", ir.DataType.UINT8))
            for value, (word, dtype) in zip(made.outputs, kinds, strict=True):
                value.name, value.type = self.namer.fresh(f"{data.name}_{word}"), ir.TensorType(dtype)
            made.outputs[0].shape = data.shape.copy() if data.shape is not None else None
            graph.insert_before(node, [made])
            self.made[data, graph] = made
        data, step, zero = self.made[data, graph].outputs
        return data, step, zero

    def _op(
        self,
        before: ir.Node,
        op: str,
        inputs: list[ir.Value | None],
        attributes: dict[str, ir.Attr] | None = None,
        dtype: ir.DataType = ir.DataType.FLOAT,
    ) -> ir.Node:
        made = ir.Node("", op, inputs, (attributes or {}).values(), name=self.namer.node(f"{before.name}_{op}"))
        made.outputs[0].name = self.namer.fresh(f"{before.name}_{op.lower()}")
        made.outputs[0].type = ir.TensorType(dtype)
        self._home(before).insert_before(before, [made])
        return made

    def _constant(self, node: ir.Node, word: str, array: NDArray[np.generic]) -> ir.Value:
        return set_constant(self._home(node), self.namer, f"{node.name}_{word}", array)

    def _transposed(self, weight: ir.Value, order: tuple[int, ...]) -> ir.Value:
        """Integers in another order, made once for all readers."""
        if weight not in self.turned:
            array, home = constant_array(weight), weight.graph
            assert array is not None and isinstance(home, ir.Graph)
            self.turned[weight] = set_constant(home, self.namer, f"{weight.name}_transposed", array.transpose(order))
        return self.turned[weight]

    def _take_over(self, node: ir.Node, last: ir.Node) -> None:
        rename_output(last.outputs[0], node.outputs[0])
        name, node.name = node.name, None
        remove_nodes([node])
        last.name = name

    def _replace(self, node: ir.Node, inputs: list[ir.Value | None]) -> None:
        """Another operator in a node's place, with the attributes that both have, and its outputs."""
        attributes = [node.attributes[name] for name in node.attributes if name in _ALIKE[node.op_type]]
        made = ir.Node(MICROSOFT, _OWN[node.op_type], inputs, attributes, num_outputs=len(node.outputs))
        self._home(node).insert_before(node, [made])
        for old, new in zip(node.outputs, made.outputs, strict=True):
            rename_output(new, old)
        name, node.name = node.name, None
        remove_nodes([node])
        made.name = name
        self.model.opset_imports.setdefault(MICROSOFT, 1)

    def _home(self, node: ir.Node) -> ir.Graph:
        assert isinstance(node.graph, ir.Graph)
        return node.graph


def _stored(node: ir.Node, position: int) -> tuple[ir.Value, NDArray[np.float32]] | None:
    """The integers behind an input, and their scale; None where they are none, or their zero point is not 0."""
    value = input_of(node, position)
    unpack = value.producer() if value is not None else None
    if unpack is None or unpack.op_type != "DequantizeLinear" or not is_constant(unpack.inputs[0]):
        return None
    integers, scale = unpack.inputs[0], constant_array(unpack.inputs[1])
    zero = constant_array(input_of(unpack, 2))
    if integers is None or integers.dtype is not ir.DataType.INT8 or scale is None or (zero is not None and zero.any()):
        return None
    return integers, scale
