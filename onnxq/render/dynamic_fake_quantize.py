"""``onnxq::DynamicFakeQuantize``: 8 bits with the range that a tensor has at each run, as a model-local ONNX function.

It runs in plain onnxruntime with no custom-op library, from opset 18 on::

    DynamicFakeQuantize(x, axes)             x float32 of any shape, axes int64: those that have one range together
        low, high = min(min(x over axes), 0), max(max(x over axes), 0)
        scale = (high - low) / 255, 1 where both are 0;    zero = clip(round_half_even(-128 - low / scale), -128, 127)
        = (clip(round_half_even(x / scale) + zero, -128, 127) - zero) * scale

These are the numbers of XNNPACK's dynamically quantized operands ("qd8", ``xnn_f32_qd8_asymmetric_quantization_params``
in its source), but for the rounding of float32.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import remove_nodes, replace_value
from onnxq.render.fake_quantize import DOMAIN, VERSION

__all__ = ["NAME", "OPSET", "node", "register", "take_out"]

NAME = "DynamicFakeQuantize"
OPSET = 18
"""The first whose ReduceMin and ReduceMax read their axes."""
_LOW, _HIGH = -128, 127


def node(x: ir.Value, axes: ir.Value, name: str) -> ir.Node:
    """A call of the function.

    Args:
        x: float32 tensor.
        axes: int64 list of the axes over which a range is taken.
        name: the node's name.
    """
    return ir.node(NAME, [x, axes], domain=DOMAIN, name=name)


def register(model: ir.Model) -> None:
    """Add the function and its domain to a model, once."""
    key = (DOMAIN, NAME, "")
    if key not in model.functions:
        model.functions[key] = _function(model.opset_imports[""])
        model.opset_imports[DOMAIN] = VERSION


def take_out(model: ir.Model) -> None:
    """Let what reads a rounded tensor read the tensor itself: rounding it is what a target's kernels do."""
    for node in list(all_nodes(model)):
        if (node.domain, node.op_type) == (DOMAIN, NAME) and (x := node.inputs[0]) is not None:
            replace_value(node.outputs[0], x)
            remove_nodes([node])


def _function(opset: int) -> ir.Function:
    x, axes = ir.Value(name="x"), ir.Value(name="axes")
    nodes: list[ir.Node] = []

    def op(op_type: str, inputs: Sequence[ir.Value], out: str, **attributes: int) -> ir.Value:
        nodes.append(ir.node(op_type, inputs, attributes=attributes or None))
        nodes[-1].outputs[0].name = out
        return nodes[-1].outputs[0]

    def constant(number: float, out: str) -> ir.Value:
        array: NDArray[np.float32] = np.array(number, np.float32)
        nodes.append(ir.node("Constant", [], attributes={"value": ir.tensor(array, name=out)}))
        nodes[-1].outputs[0].name = out
        return nodes[-1].outputs[0]

    none, one, steps = constant(0.0, "none"), constant(1.0, "one"), constant(_HIGH - _LOW, "steps")
    least, most = constant(_LOW, "least"), constant(_HIGH, "most")
    low = op("Min", [op("ReduceMin", [x, axes], "lowest", keepdims=1), none], "low")
    high = op("Max", [op("ReduceMax", [x, axes], "highest", keepdims=1), none], "high")
    width = op("Div", [op("Sub", [high, low], "width"), steps], "step")
    scale = op("Where", [op("Equal", [width, none], "is_flat"), one, width], "scale")
    begin = op("Sub", [least, op("Div", [low, scale], "low_steps")], "begin")
    zero = op("Clip", [op("Round", [begin], "near"), least, most], "zero_point")
    rounded = op("Round", [op("Div", [x, scale], "ratio")], "rounded")
    code = op("Clip", [op("Add", [rounded, zero], "shifted"), least, most], "code")
    y = op("Mul", [op("Sub", [code, zero], "centred"), scale], "y")
    graph = ir.Graph([x, axes], [y], nodes=nodes, opset_imports={"": opset}, name=NAME)
    return ir.Function(DOMAIN, NAME, graph=graph, attributes=[])
