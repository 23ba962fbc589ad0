"""``onnxq::NNIEQuantize``: the logarithmic grid as a model-local ONNX function of standard operators.

It runs in plain onnxruntime with no custom-op library, from opset 13 on, and gives the numbers of
:mod:`onnxq.grids.logarithmic` bit for bit::

    NNIEQuantize(x, data_max)        x float32 of any shape, data_max the clip value, a float32 scalar

Inside, a code is found in float64 (sign and magnitude, as the hardware stores it) and looked up among the 256 numbers
of the grid. Name and inputs are those of the operator that MQBench exports.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.grids.logarithmic import STEPS, TOP, ZERO
from onnxq.render.fake_quantize import DOMAIN, VERSION

__all__ = ["NAME", "node", "register"]

NAME = "NNIEQuantize"


def node(x: ir.Value, clip: ir.Value, name: str) -> ir.Node:
    """A call of the function.

    Args:
        x: float32 tensor.
        clip: the clip value, a float32 scalar.
        name: the node's name.
    """
    return ir.node(NAME, [x, clip], domain=DOMAIN, name=name)


def register(model: ir.Model) -> None:
    """Add the function and its domain to a model, once."""
    key = (DOMAIN, NAME, "")
    if key not in model.functions:
        model.functions[key] = _function(model.opset_imports.get("", 17))
        model.opset_imports[DOMAIN] = VERSION


class _Body:
    """Nodes of a function, one after the other."""

    def __init__(self) -> None:
        self.nodes: list[ir.Node] = []

    def op(self, op_type: str, inputs: Sequence[ir.Value], out: str, **attributes: int) -> ir.Value:
        made = ir.node(op_type, inputs, attributes=attributes or None)
        made.outputs[0].name = out
        self.nodes.append(made)
        return made.outputs[0]

    def constant(self, numbers: NDArray[np.generic] | float, out: str) -> ir.Value:
        array = np.asarray(numbers, np.float64) if isinstance(numbers, float) else numbers
        made = ir.node("Constant", [], attributes={"value": ir.tensor(array, name=out)})
        made.outputs[0].name = out
        self.nodes.append(made)
        return made.outputs[0]


def _function(opset: int) -> ir.Function:
    x, clip = ir.Value(name="x"), ir.Value(name="data_max")
    body = _Body()
    op, constant = body.op, body.constant
    double, single, whole = int(ir.DataType.DOUBLE), int(ir.DataType.FLOAT), int(ir.DataType.INT64)
    steps, two = constant(float(STEPS), "steps"), constant(2.0, "two")
    first, one = constant(0.0, "first"), constant(1.0, "one")
    top, zero = constant(float(TOP), "top"), constant(float(ZERO), "zero")
    by_octaves = constant(float(STEPS / np.log(2.0)), "steps_a_unit_of_log")

    def power(exponent: ir.Value, out: str) -> ir.Value:
        return op("Pow", [two, op("Div", [exponent, steps], f"{out}_octaves")], out)

    def place(value: ir.Value, out: str) -> ir.Value:
        return op("Round", [op("Mul", [op("Log", [value], f"{out}_log"), by_octaves], f"{out}_exact")], out)

    z = op("Sub", [place(op("Cast", [clip], "clip", to=double), "n"), top], "z")
    lowest = power(op("Sub", [z, steps], "lowest_exponent"), "lowest")
    below = power(op("Sub", [op("Add", [z, one], "z_next"), steps], "below_exponent"), "below")
    # codes
    wide = op("Cast", [x], "wide", to=double)
    k = op("Sub", [place(op("Abs", [wide], "magnitude"), "position"), z], "k")
    above = op("Clip", [k, first, top], "code_above")
    under = op("Add", [op("Clip", [k, one, top], "k_under"), zero], "code_under")
    is_above = op("GreaterOrEqual", [wide, lowest], "is_above")
    is_under = op("Less", [wide, op("Neg", [below], "minus_below")], "is_under")
    code = op("Where", [is_above, above, op("Where", [is_under, under, zero], "code_not_above")], "code_wide")
    # the numbers of all codes
    codes = np.arange(2 * (TOP + 1))
    signs = np.sign(ZERO - codes).astype(np.float64)
    exponents = op("Add", [constant((codes % ZERO).astype(np.float64), "places"), z], "exponents")
    numbers = op("Mul", [power(exponents, "sizes"), constant(signs, "signs")], "numbers")
    table = op("Cast", [numbers], "table", to=single)
    y = op("Gather", [table, op("Cast", [code], "code", to=whole)], "y")
    graph = ir.Graph([x, clip], [y], nodes=body.nodes, opset_imports={"": opset}, name=NAME)
    return ir.Function(DOMAIN, NAME, graph=graph, attributes=[])
