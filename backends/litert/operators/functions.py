"""Functions of one tensor, element by element, and softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxq.backends.litert.codes import cast_options
from onnxq.backends.litert.placed import Grid, Placed, RefusedError, own_grid, plain
from onnxq.backends.litert.translation import Translation

__all__ = ["OPERATORS"]

_ALIKE = {
    "Abs": "ABS",
    "Ceil": "CEIL",
    "Cos": "COS",
    "Exp": "EXP",
    "Floor": "FLOOR",
    "Log": "LOG",
    "Neg": "NEG",
    "Not": "LOGICAL_NOT",
    "Round": "ROUND",
    "Sigmoid": "LOGISTIC",
    "Sign": "SIGN",
    "Sin": "SIN",
    "Sqrt": "SQRT",
    "Tanh": "TANH",
}
_BETWEEN = {(0.0, np.inf): "RELU", (0.0, 6.0): "RELU6", (-1.0, 1.0): "RELU_N1_TO_1", (0.0, 1.0): "RELU_0_TO_1"}
"""Clips that are operators of their own."""
_WIDE, _EIGHT = ("RELU", "RELU6"), 8
"""Those of int16, and what has fewer bits."""
_OPEN = (-np.inf, np.inf)
_SMALL = 1e-3
"""Below which log(1 + p) is p to three digits, as many as float32 keeps of 1 + p."""


def _alike(kind: str) -> Callable[[Translation, ir.Node], None]:
    def unary(t: Translation, node: ir.Node) -> None:
        """An operator of the same meaning."""
        _written(t, node, kind, t.read(node.inputs[0]))

    return unary


def _written(t: Translation, node: ir.Node, kind: str, x: Placed, **options: Any) -> None:
    """An operator of one tensor; what has a grid of its own is on that first, then on that of the result."""
    value, grid = node.outputs[0], t.grid_of(node.outputs[0])
    found = own_grid(node.op_type, grid.bits) if grid is not None else None
    own = Grid((found[0],), (found[1],), dtype=grid.dtype) if grid is not None and found is not None else None
    made = t.new(value, x.order, grid=own)
    t.flat.operator(kind, [x.index], [made.index], **options)
    t.place(value, made if own is None or grid is None else t.requantized(made, grid, value.name or ""))


def _composed(steps: Callable[[Translation, ir.Node, Placed], Placed]) -> Callable[[Translation, ir.Node], None]:
    def written(t: Translation, node: ir.Node) -> None:
        """A function written with several operators, in float."""
        if t.integer:
            raise RefusedError("TensorFlow Lite has no such function of integers")
        made = steps(t, node, t.read(node.inputs[0]))
        t.flat.rename(made.index, node.outputs[0].name or "")
        t.place(node.outputs[0], made)

    return written


def leaky(t: Translation, node: ir.Node) -> None:
    """LEAKY_RELU."""
    x = t.read(node.inputs[0])
    t.write(node.outputs[0], "LEAKY_RELU", [x.index], x.order, alpha=node.attributes.get_float("alpha", 0.01))


def gelu(t: Translation, node: ir.Node) -> None:
    """GELU."""
    x = t.read(node.inputs[0])
    approximate = node.attributes.get_string("approximate", "none") == "tanh"
    t.write(node.outputs[0], "GELU", [x.index], x.order, approximate=approximate)


def clip(t: Translation, node: ir.Node) -> None:
    """One of the RELUs where it is one, else MINIMUM and MAXIMUM."""
    ends = [t.numbers(value) if value is not None else None for value in (*node.inputs[1:], None, None)[:2]]
    if any(end is None and value is not None for end, value in zip(ends, node.inputs[1:], strict=False)):
        raise RefusedError("its bounds are computed")
    low, high = (float(end.reshape(-1)[0]) if end is not None else away for end, away in zip(ends, _OPEN, strict=True))
    _between(t, node, low, high)


def relu(t: Translation, node: ir.Node) -> None:
    """RELU of floats; in integers see :func:`_between`."""
    _between(t, node, 0.0, np.inf)


def _between(t: Translation, node: ir.Node, low: float, high: float) -> None:
    """What lies between two bounds.

    The RELUs of int8 take 7 ns an element on x86-64: XNNPACK has none. MAXIMUM and MINIMUM on the grid of the result
    take .02, and are not there where that grid ends as they do. Of int16 XNNPACK has none of them.
    """
    x, value = t.read(node.inputs[0]), node.outputs[0]
    kind = _BETWEEN.get((low, high))
    grid = t.grid_of(value)
    if kind is not None and x.dtype is ir.DataType.FLOAT:
        t.write(value, kind, [x.index], x.order)
        return
    x = t.requantized(x, grid, value.name or "") if grid is not None else x
    if grid is not None and grid.bits > _EIGHT and kind in _WIDE:
        t.write(value, kind, [x.index], x.order)
        return
    bounds = [("MAXIMUM", low)] * (low > -np.inf) + [("MINIMUM", high)] * (high < np.inf)
    for kind, bound in bounds:
        if grid is not None and t.code(bound, grid) == (grid.lowest if kind == "MAXIMUM" else grid.highest):
            continue
        made = t.new(value, x.order)
        if grid is not None and grid.bits > _EIGHT and (kind, bound) == ("MAXIMUM", 0.0):
            t.flat.operator("RELU", [x.index], [made.index])  # which the operator in front may compute
        else:
            t.flat.operator(kind, [x.index, _bound(t, x, bound, grid).index], [made.index])
        x = made
    t.place(value, x)


def _bound(t: Translation, x: Placed, number: float, grid: Grid | None) -> Placed:
    code = t.code(number, grid) if grid is not None else number
    return t.constant("bound", np.full((1,) * len(x.shape), code, x.dtype.numpy()), grid)


def softmax(t: Translation, node: ir.Node) -> None:
    """SOFTMAX or LOG_SOFTMAX over the last axis that is stored."""
    rank = len(t.shape(node.inputs[0]))
    axis = node.attributes.get_int("axis", -1) % rank
    x = t.read(node.inputs[0])
    if x.order[-1] != axis:
        x = t.read(node.inputs[0], (*(one for one in range(rank) if one != axis), axis))
    if node.op_type == "Softmax":
        _written(t, node, "SOFTMAX", x, beta=1.0)
    else:
        t.write(node.outputs[0], "LOG_SOFTMAX", [x.index], x.order)


def elu(t: Translation, node: ir.Node) -> None:
    """ELU, whose steepness is 1."""
    if node.attributes.get_float("alpha", 1.0) != 1.0:
        _composed(_steep_elu)(t, node)
    else:
        _alike("ELU")(t, node)


def _parts_of_elu(t: Translation, x: Placed) -> tuple[Placed, Placed]:
    """What is above 0, and exp(x) - 1 of what is below."""
    zero = t.scalar(0.0, x)
    below = t.compute("EXP", [t.compute("MINIMUM", [x, zero])])
    return t.compute("MAXIMUM", [x, zero]), t.compute("SUB", [below, t.scalar(1.0, x)])


def _steep_elu(t: Translation, node: ir.Node, x: Placed) -> Placed:
    above, below = _parts_of_elu(t, x)
    alpha = node.attributes.get_float("alpha", 1.0)
    return t.compute("ADD", [above, t.compute("MUL", [below, t.scalar(alpha, x)])])


def _selu(t: Translation, node: ir.Node, x: Placed) -> Placed:
    alpha, gamma = (
        node.attributes.get_float("alpha", 1.67326319217681884765625),
        node.attributes.get_float("gamma", 1.05070102214813232421875),
    )
    above, below = _parts_of_elu(t, x)
    both = t.compute("ADD", [above, t.compute("MUL", [below, t.scalar(alpha, x)])])
    return t.compute("MUL", [both, t.scalar(gamma, x)])


def _celu(t: Translation, node: ir.Node, x: Placed) -> Placed:
    alpha = node.attributes.get_float("alpha", 1.0)
    zero = t.scalar(0.0, x)
    above, least = t.compute("MAXIMUM", [x, zero]), t.compute("MINIMUM", [x, zero])
    power = t.compute("EXP", [t.compute("MUL", [least, t.scalar(1.0 / alpha, x)])])
    below = t.compute("MUL", [t.compute("SUB", [power, t.scalar(1.0, x)]), t.scalar(alpha, x)])
    return t.compute("ADD", [above, below])


def _softplus(t: Translation, node: ir.Node, x: Placed) -> Placed:
    """max(x, 0) + log(1 + exp(-|x|)), which does not overflow; of small powers these themselves, which 1 would hide."""
    power = t.compute("EXP", [t.compute("NEG", [t.compute("ABS", [x])])])
    rest = t.compute("LOG", [t.compute("ADD", [power, t.scalar(1.0, x)])])
    rest = t.chosen(t.compared("LESS", power, t.scalar(_SMALL, x)), power, rest)
    return t.compute("ADD", [t.compute("MAXIMUM", [x, t.scalar(0.0, x)]), rest])


def _mish(t: Translation, node: ir.Node, x: Placed) -> Placed:
    return t.compute("MUL", [x, t.compute("TANH", [_softplus(t, node, x)])])


def _softsign(t: Translation, node: ir.Node, x: Placed) -> Placed:
    return t.compute("DIV", [x, t.compute("ADD", [t.compute("ABS", [x]), t.scalar(1.0, x)])])


def _reciprocal(t: Translation, node: ir.Node, x: Placed) -> Placed:
    return t.compute("DIV", [t.scalar(1.0, x), x])


def _swish(t: Translation, node: ir.Node, x: Placed) -> Placed:
    alpha = node.attributes.get_float("alpha", 1.0)
    inner = x if alpha == 1.0 else t.compute("MUL", [x, t.scalar(alpha, x)])
    return t.compute("MUL", [x, t.compute("LOGISTIC", [inner])])


def _thresholded(t: Translation, node: ir.Node, x: Placed) -> Placed:
    above = t.compared("GREATER", x, t.scalar(node.attributes.get_float("alpha", 1.0), x))
    return t.compute("MUL", [x, t.cast(above, ir.DataType.FLOAT)])


def not_a_number(t: Translation, node: ir.Node) -> None:
    """What differs from itself."""
    x = t.read(node.inputs[0])
    t.write(node.outputs[0], "NOT_EQUAL", [x.index, x.index], x.order)


def identity(t: Translation, node: ir.Node) -> None:
    """The same tensor."""
    t.place(node.outputs[0], t.read_on_grid(node))


def cast(t: Translation, node: ir.Node) -> None:
    """CAST."""
    value = node.outputs[0]
    halves = value.dtype in (ir.DataType.FLOAT16, ir.DataType.DOUBLE)
    x = t.read(node.inputs[0], plain(len(t.shape(value))) if halves else None)  # nothing moves these
    if value.dtype is x.dtype:
        t.place(value, x)
        return
    made = t.new(value, x.order)
    t.flat.operator("CAST", [x.index], [made.index], **cast_options(x.dtype, made.dtype))
    t.place(value, made)


OPERATORS: dict[str, Any] = {
    **{op: _alike(kind) for op, kind in _ALIKE.items()},
    "Cast": cast,
    "Celu": _composed(_celu),
    "Clip": clip,
    "Elu": elu,
    "Gelu": gelu,
    "Identity": identity,
    "IsNaN": not_a_number,
    "LeakyRelu": leaky,
    "LogSoftmax": softmax,
    "Mish": _composed(_mish),
    "Relu": relu,
    "Reciprocal": _composed(_reciprocal),
    "Selu": _composed(_selu),
    "Softmax": softmax,
    "Softplus": _composed(_softplus),
    "Softsign": _composed(_softsign),
    "Swish": _composed(_swish),
    "ThresholdedRelu": _composed(_thresholded),
}
