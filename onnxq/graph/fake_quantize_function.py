"""``onnxq::FakeQuantize``: fake-quantization as a model-local ONNX function of standard operators.

It runs in plain onnxruntime with no custom-op library, at any bit width, and translators recognise it by name::

    FakeQuantize(x, scale, zero_point; quant_min, quant_max)
        = (clip(round_half_even(x / scale) + zero_point, quant_min, quant_max) - zero_point) * scale

All tensors are float32; ``scale`` and ``zero_point`` have a shape that broadcasts against ``x``.
"""

from __future__ import annotations

import onnx_ir as ir

__all__ = ["DOMAIN", "NAME", "VERSION", "register"]

DOMAIN = "onnxq"
NAME = "FakeQuantize"
VERSION = 1


def register(model: ir.Model) -> None:
    """Add the function and its domain to a model, once."""
    key = (DOMAIN, NAME, "")
    if key in model.functions:
        return
    opset = model.opset_imports.get("", 17)
    model.functions[key] = _function(opset)
    model.opset_imports[DOMAIN] = VERSION


def _function(opset: int) -> ir.Function:
    x, scale, zero = (ir.Value(name=n) for n in ("x", "scale", "zero_point"))
    nodes: list[ir.Node] = []

    def op(op_type: str, inputs: list[ir.Value], out: str, **attributes: int) -> ir.Value:
        made = ir.node(op_type, inputs, attributes=attributes or None)
        made.outputs[0].name = out
        nodes.append(made)
        return made.outputs[0]

    def bound(attribute: str) -> ir.Value:
        made = ir.Node("", "Constant", [], [ir.RefAttr("value_int", attribute, ir.AttributeType.INT)], num_outputs=1)
        made.outputs[0].name = f"{attribute}_int"
        nodes.append(made)
        return op("Cast", [made.outputs[0]], f"{attribute}_float", to=int(ir.DataType.FLOAT))

    low, high = bound("quant_min"), bound("quant_max")
    rounded = op("Round", [op("Div", [x, scale], "ratio")], "rounded")
    shifted = op("Add", [rounded, zero], "shifted")
    clipped = op("Clip", [shifted, low, high], "clipped")
    centred = op("Sub", [clipped, zero], "centred")
    y = op("Mul", [centred, scale], "y")
    graph = ir.Graph([x, scale, zero], [y], nodes=nodes, opset_imports={"": opset}, name=NAME)
    attributes = [
        ir.Attr("quant_min", ir.AttributeType.INT, None),
        ir.Attr("quant_max", ir.AttributeType.INT, None),
        ir.Attr("axis", ir.AttributeType.INT, 0),
    ]
    return ir.Function(DOMAIN, NAME, graph=graph, attributes=attributes)
