"""HardSwish and HardSigmoid, in integers with sums and products.

LiteRT has no HardSigmoid, and its HARD_SWISH of int8 takes 3 ns an element on x86-64: XNNPACK has no kernel for it. It
has those of ADD and MUL, which take .04 together. The sum ends where its grid does, so that no operator clips; factors
are products with one integer, whose scale they are. Of int16, which has no HARD_SWISH at all, a grid ends above alone,
and a RELU below.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxq.backends.litert.placed import Grid, Placed
from onnxq.backends.litert.translation import Translation

__all__ = ["OPERATORS", "factor"]

_STEEPEST = 127.0
"""Scale of what HARD_SWISH reads, as a share of what it writes: from 128 on its kernel refuses the model."""
_SWISH = (3.0, 6.0)
"""What is added, and where the sum ends."""


def swish(t: Translation, node: ir.Node) -> None:
    """x min(6, max(0, x + 3)) / 6; HARD_SWISH of floats, and of integers for microcontrollers and NPUs."""
    x, value = t.read(node.inputs[0]), node.outputs[0]
    grid = t.grid_of(value)
    if grid is None or (t.small and grid.dtype is ir.DataType.INT8 and _is_one(x, grid)):
        t.write(value, "HARD_SWISH", [x.index], x.order)
        return
    gate = _clipped_sum(t, x, *_SWISH)
    wide = replace(grid, scale=(float(np.float32(grid.scale[0]) * np.float32(_SWISH[1])),))
    product = t.flat.tensor("product", x.shape, wide.dtype, wide)
    t.flat.operator("MUL", [x.index, gate.index], [product])
    t.write(value, "MUL", [product, factor(t, 1 / _SWISH[1], x)], x.order)


def _is_one(x: Placed, grid: Grid) -> bool:
    """Whether HARD_SWISH takes the grids of what it reads and writes."""
    return x.grid is not None and x.grid.scale[0] <= _STEEPEST * grid.scale[0]


def sigmoid(t: Translation, node: ir.Node) -> None:
    """alpha times x + beta / alpha, from 0 to 1 / alpha."""
    x, value = t.read(node.inputs[0]), node.outputs[0]
    alpha, beta = node.attributes.get_float("alpha", 0.2), node.attributes.get_float("beta", 0.5)
    if t.grid_of(value) is not None:
        line = _clipped_sum(t, x, beta / alpha, 1 / alpha)
        t.write(value, "MUL", [line.index, factor(t, alpha, x)], x.order)
        return
    line = t.compute("ADD", [t.compute("MUL", [x, t.scalar(alpha, x)]), t.scalar(beta, x)])
    made = t.compute("MINIMUM", [t.compute("MAXIMUM", [line, t.scalar(0.0, x)]), t.scalar(1.0, x)])
    t.flat.rename(made.index, value.name or "")
    t.place(value, made)


def _clipped_sum(t: Translation, x: Placed, number: float, end: float) -> Placed:
    """x and a number, from 0 to an end, which are those of the grid."""
    assert x.grid is not None
    least = x.grid.lowest if x.dtype is ir.DataType.INT8 else 0
    grid = Grid((float(np.float32(end / (x.grid.highest - least))),), (least,), dtype=x.dtype)
    made = t.compute("ADD", [x], _one(t, x.grid.highest, number / x.grid.highest, x), grid=grid)
    return made if least else t.compute("RELU", [made], grid=grid)


def factor(t: Translation, number: float, x: Placed) -> int:
    """A constant that a tensor of integers is multiplied by, one element on a scale of its own."""
    return _one(t, 1, number, x)


def _one(t: Translation, code: int, scale: float, x: Placed) -> int:
    """A constant of one element: a code on a scale of its own, for which zero is 0."""
    grid = Grid((float(np.float32(scale)),), (0,), dtype=x.dtype)
    return t.constant("number", np.full((1,) * len(x.shape), code, x.dtype.numpy()), grid).index


OPERATORS: dict[str, Any] = {"HardSigmoid": sigmoid, "HardSwish": swish}
