"""A table: float operator → the QOperator that computes it on integers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx_ir as ir

from onnxq.graph.domains import MICROSOFT
from onnxq.render.qoperator.units import NoQOperatorError, Unit, same_grid
from onnxq.rows import plain_average_pool

__all__ = ["BUILDERS", "MOVES", "may_move"]

Builder = Callable[[Unit], ir.Node]

_CONV = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
_POOL = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")

_ANY = frozenset({ir.DataType.UINT8, ir.DataType.INT8, ir.DataType.UINT16, ir.DataType.INT16})
_BYTES = frozenset({ir.DataType.UINT8, ir.DataType.INT8})

MOVES: Mapping[str, frozenset[ir.DataType]] = {
    **dict.fromkeys(("Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze"), _ANY),
    **dict.fromkeys(("Tile", "Transpose", "Unsqueeze"), _ANY),
    **dict.fromkeys(("DepthToSpace", "MaxPool", "Resize", "SpaceToDepth"), _BYTES),
}
"""Operators that move or select values → the integers on which onnxruntime's kernels do so."""


def may_move(node: ir.Node) -> bool:
    """Whether a node of :data:`MOVES` gives nothing but elements of its first input."""
    if node.op_type == "Resize":
        mode = node.attributes.get_string("mode", "nearest")
        return (
            mode == "nearest"
            and node.attributes.get_string("coordinate_transformation_mode", "") != "tf_crop_and_resize"
        )
    return node.op_type != "MaxPool" or len(node.outputs) == 1 or not node.outputs[1].uses()


def _made(
    unit: Unit, op: str, inputs: list[ir.Value | None], keep: tuple[str, ...] = (), domain: str = MICROSOFT
) -> ir.Node:
    attributes = [a for name, a in unit.node.attributes.items() if name in keep]
    made = ir.Node(domain, op, inputs, attributes, name=unit.node.name)
    made.metadata_props.update(unit.node.metadata_props)
    made.doc_string = unit.node.doc_string
    return made


def _conv(unit: Unit) -> ir.Node:
    x, w, y = unit.per_tensor(0), unit.weight(1, 0), unit.output()
    unit.one_type(x, y)
    unit.weight_type(x, w)
    inputs: list[ir.Value | None] = [*x, *w, y.scale, y.zero]
    bias = unit.bias(2, x, w)
    return _made(unit, "QLinearConv", [*inputs, bias] if bias is not None else inputs, _CONV, domain="")


def _matmul(unit: Unit) -> ir.Node:
    a, b = unit.per_tensor(0), unit.weight(1, -1)
    unit.weight_type(a, b)
    if unit.target is None:
        return _made(unit, "MatMulIntegerToFloat", [a.integers, b.integers, a.scale, b.scale, a.zero, b.zero])
    y = unit.output()
    unit.one_type(a, y)
    return _made(unit, "QLinearMatMul", [*a, *b, y.scale, y.zero], domain="")


def _gemm(unit: Unit) -> ir.Node:
    attributes = unit.node.attributes
    if attributes.get_float("alpha", 1.0) != 1.0 or attributes.get_float("beta", 1.0) != 1.0:
        raise NoQOperatorError("alpha or beta is not 1")
    a, b = unit.per_tensor(0), unit.weight(1, 0 if attributes.get_int("transB", 0) else 1)
    unit.weight_type(a, b)
    inputs: list[ir.Value | None] = [*a, *b, unit.bias(2, a, b)]
    if unit.target is not None:
        y = unit.output()
        unit.one_type(a, y)
        inputs += [y.scale, y.zero]
    return _made(unit, "QGemm", inputs, ("transA", "transB"))


def _binary(op: str) -> Builder:
    def build(unit: Unit) -> ir.Node:
        a, b, y = unit.per_tensor(0), unit.per_tensor(1), unit.output()
        unit.one_type(a, b, y)
        return _made(unit, op, [*a, *b, y.scale, y.zero])

    return build


def _unary(op: str, *keep: str) -> Builder:
    def build(unit: Unit) -> ir.Node:
        x, y = unit.per_tensor(0), unit.output()
        unit.one_type(x, y)
        return _made(unit, op, [*x, y.scale, y.zero], keep)

    return build


def _average_pool(unit: Unit) -> ir.Node:
    why = plain_average_pool(unit.node)
    if why is not None:
        raise NoQOperatorError(why)
    return _unary("QLinearAveragePool", *_POOL)(unit)


def _softmax(unit: Unit) -> ir.Node:
    made = _unary("QLinearSoftmax", "axis")(unit)
    made.attributes.setdefault("axis", ir.AttrInt64("axis", -1 if unit.opset >= 13 else 1))
    made.attributes["opset"] = ir.AttrInt64("opset", unit.opset)
    return made


def _concat(unit: Unit) -> ir.Node:
    parts, y = [unit.per_tensor(k) for k in range(len(unit.node.inputs))], unit.output()
    unit.one_type(*parts, y)
    if all(same_grid(part, y) for part in parts):
        return _made(unit, "Concat", [part.integers for part in parts], ("axis",), domain="")
    return _made(unit, "QLinearConcat", [y.scale, y.zero, *(v for part in parts for v in part)], ("axis",))


BUILDERS: Mapping[str, Builder] = {
    "Add": _binary("QLinearAdd"),
    "AveragePool": _average_pool,
    "Concat": _concat,
    "Conv": _conv,
    "Gemm": _gemm,
    "GlobalAveragePool": _unary("QLinearGlobalAveragePool"),
    "LeakyRelu": _unary("QLinearLeakyRelu", "alpha"),
    "MatMul": _matmul,
    "Mul": _binary("QLinearMul"),
    "Sigmoid": _unary("QLinearSigmoid"),
    "Softmax": _softmax,
}
"""Float operator → builder of the node that takes its place, without outputs; raises
:class:`~onnxq.render.qoperator.units.NoQOperatorError` where it cannot."""
