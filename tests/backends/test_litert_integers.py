"""Quantized operators: LiteRT's interpreter computes all in int8, and as onnxruntime does, a step off at most.

One step: plain kernels round twice, after a multiplier of 32 bits and after a shift; XNNPACK's change of a grid
multiplies by 8 bits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onnxq.backends.litert import BACKEND
from tests.backends.litert_interpreter import agrees_in_integers, one
from tests.models import f32, normal

pytest.importorskip("ai_edge_litert")

_PICTURES = "2, 4, 5, 6"

CASES: dict[str, onnx.ModelProto] = {}


def case(name: str, node: str, *shapes: str, **constants: Any) -> None:
    """One more case."""
    CASES[name] = one(node, *shapes, **constants)


for _where, _given, _made in (
    ("pads = [1, 1, 1, 1]", 4, 8),
    ("pads = [0, 0, 1, 1], strides = [2, 2]", 4, 8),
    ("pads = [1, 0, 2, 1], strides = [2, 1]", 4, 8),
    ("pads = [2, 2, 2, 2], dilations = [2, 2]", 4, 8),
    ("group = 2", 2, 8),
    ("group = 4, pads = [1, 1, 1, 1]", 1, 4),
    ("group = 4", 1, 8),
):
    _weights = {"w": normal(_made, _given, 3, 3), "b": normal(_made, seed=2)}
    case(f"Conv {_where} {_made}", f"Conv <{_where}> (x, w, b)", "1, 4, 8, 9", **_weights)
case("Conv without a bias", "Conv (x, w)", "1, 4, 8, 9", w=normal(8, 4, 3, 3))
case("Conv and Relu", "c = Conv (x, w)\n y = Relu (c)", "1, 4, 8, 9", w=normal(8, 4, 3, 3))
case("Conv of lines", "Conv <pads = [1, 1]> (x, w, b)", "1, 4, 9", w=normal(8, 4, 3), b=normal(8))
case("Conv of lines in groups", "Conv <group = 4> (x, w, b)", "1, 4, 9", w=normal(4, 1, 3), b=normal(4))
for _where in (
    "strides = [2, 2]",
    "strides = [2, 2], pads = [1, 1, 1, 1], output_padding = [1, 1]",
    "strides = [4, 4]",
):
    _weights = {"w": normal(4, 6, 3, 3), "b": normal(6)}
    case(f"ConvTranspose {_where}", f"ConvTranspose <{_where}> (x, w, b)", "1, 4, 5, 6", **_weights)
case("ConvTranspose in groups", "ConvTranspose <group = 2> (x, w)", "1, 4, 5, 6", w=normal(4, 3, 2, 2))
case("ConvTranspose with gaps", "ConvTranspose <dilations = [2, 2]> (x, w)", "1, 4, 5, 6", w=normal(4, 3, 3, 3))
case("ConvTranspose of lines", "ConvTranspose <pads = [1, 1]> (x, w, b)", "1, 4, 6", w=normal(4, 3, 4), b=normal(3))

case("Gemm", "Gemm (x, w, b)", "3, 16", w=normal(16, 8), b=normal(8))
case("Gemm transposed", "Gemm <transB = 1> (x, w)", "3, 16", w=normal(8, 16))
for _size in ("16", "5, 16", "2, 5, 16", "2, 3, 5, 16", "2, 3, 2, 5, 16"):
    case(f"MatMul {_size}", "MatMul (x, w)", _size, w=normal(16, 8))
    case(f"MatMul and Add {_size}", "m = MatMul (x, w)\n y = Add (m, b)", _size, w=normal(16, 8), b=normal(8))
for _left, _right in (("5, 16", "16, 7"), ("2, 3, 5, 16", "2, 3, 16, 7"), ("1, 3, 5, 4", "2, 1, 4, 6")):
    case(f"MatMul of two {_left}", "MatMul (x, z)", _left, _right)
case("MatMul of batches", "MatMul (x, w)", "2, 3, 5, 16", w=normal(2, 3, 16, 4))
case("MatMul from the left", "MatMul (w, x)", "2, 3, 5, 16", w=normal(4, 5))
case("MatMul with a vector", "MatMul (x, w)", "2, 5, 16", w=normal(16))
case("MatMul transposed", "t = Transpose <perm = [0, 2, 1]> (z)\n y = MatMul (x, t)", "2, 5, 16", "2, 7, 16")

for _op in ("Add", "Sub", "Mul", "Max", "Min"):
    case(f"{_op} of two", f"{_op} (x, z)", _PICTURES, _PICTURES)
    case(f"{_op} of channels", f"{_op} (w, x)", _PICTURES, w=normal(1, 4, 1, 1))
    case(f"{_op} of a number", f"{_op} (x, w)", _PICTURES, w=f32(0.7))
    case(f"{_op} of six axes", f"{_op} (x, z)", "2, 1, 5, 1, 2, 3", "1, 4, 1, 3, 1, 3")
    case(f"{_op} behind Conv", f"c = Conv (x, k)\n y = {_op} (c, x)", _PICTURES, k=normal(4, 4, 1, 1))
    gated = f"g = GlobalAveragePool (x)\n s = Sigmoid (g)\n y = {_op} (x, s)"
    case(f"{_op} of a gate", gated, "1, 4, 5, 6")
case("Max of three", "Max (x, z, u)", _PICTURES, _PICTURES, _PICTURES)
for _function in ("Relu", "Elu", "HardSwish", "HardSigmoid", "Gelu", 'Gelu <approximate = "tanh">', "Exp", "Abs"):
    case(_function, f"{_function} (x)", _PICTURES)
for _function in ("Sigmoid", "Tanh", "LeakyRelu", "LeakyRelu <alpha = -0.3>", "LeakyRelu <alpha = 2.0>"):
    case(_function, f"{_function} (x)", "2, 3, 2, 3, 2")
for _low, _high in ((0, 6), (-1, 1), (-0.5, 0.7), (None, 0.4), (-0.3, None)):
    _bounds = {_k: np.float32(_n) for _k, _n in (("lo", _low), ("hi", _high)) if _n is not None}
    _given_bounds = f"x, {'lo' if _low is not None else ''}, {'hi' if _high is not None else ''}"
    case(f"Clip {_low} {_high}", f"Clip ({_given_bounds})", _PICTURES, **_bounds)
case("PRelu", "PRelu (x, s)", _PICTURES, s=normal(4, 1, 1))
case("PRelu of lines", "PRelu (x, s)", "2, 4, 5", s=normal(4, 1))
case("PRelu of one slope", "PRelu (x, s)", _PICTURES, s=np.full((4, 1, 1), 0.25, np.float32))
case(
    "PRelu behind a layer", "c = Conv (x, w)\n y = PRelu (c, s)", "1, 4, 8, 9", w=normal(8, 4, 3, 3), s=normal(8, 1, 1)
)
case("PRelu of steep slopes", "PRelu (x, s)", _PICTURES, s=np.linspace(-1, 2, 4, dtype=np.float32).reshape(4, 1, 1))
case("PRelu by sample", "PRelu (x, s)", "2, 4, 5", s=normal(2, 1, 1))
for _axis in range(4):
    case(f"Softmax {_axis}", f"Softmax <axis = {_axis}> (x)", _PICTURES)

for _function in ("Softmax", "Sigmoid", "Tanh"):
    case(f"Relu behind {_function}", f"f = {_function} (x)\n y = Relu (f)", _PICTURES)

for _where in (
    "kernel_shape = [2, 2], strides = [2, 2]",
    "kernel_shape = [3, 3], pads = [1, 1, 1, 1]",
    "kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1",
):
    case(f"MaxPool {_where}", f"MaxPool <{_where}> (x)", "1, 3, 9, 7")
    case(f"AveragePool {_where}", f"AveragePool <{_where}> (x)", "1, 3, 9, 7")
_counting = "kernel_shape = [3, 3], pads = [1, 1, 1, 1], count_include_pad = 1"
case("AveragePool that counts padding", f"AveragePool <{_counting}> (x)", "1, 3, 9, 7")
case("AveragePool of lines", "AveragePool <kernel_shape = [3]> (x)", "1, 3, 8")
for _op in ("AveragePool", "MaxPool"):
    case(f"{_op} of volumes", f"{_op} <kernel_shape = [2, 2, 2]> (x)", "1, 3, 4, 4, 4")
for _op in ("GlobalAveragePool", "GlobalMaxPool"):
    case(_op, f"{_op} (x)", _PICTURES)
for _op in ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin"):
    for _axes in ([1], [2, 3], [-1], [1, 3]):
        case(f"{_op} {_axes}", f"{_op} (x, a)", _PICTURES, a=np.array(_axes))
    behind_conv = f"c = Conv (x, k)\n y = {_op} <keepdims = 0> (c, a)"
    case(f"{_op} behind Conv", behind_conv, _PICTURES, k=normal(4, 4, 1, 1), a=np.array([2, 3]))

for _where in (
    'mode = "linear"',
    'mode = "linear", coordinate_transformation_mode = "align_corners"',
    'mode = "nearest"',
):
    case(f"Resize {_where}", f"Resize <{_where}> (x, , s)", "1, 3, 8, 6", s=f32([1, 1, 1.5, 2]))
_gate = 's = Sigmoid (x)\n y = Resize <mode = "linear"> (s, , f)'
case("Resize to a smaller grid", _gate, "2, 3, 8", f=f32([1, 1, 2]))
case("Resize by gathering", 'Resize <nearest_mode = "ceil"> (x, , s)', "1, 3, 8, 6", s=f32([1, 1, 2, 2]))
for _mode in ("constant", "reflect", "edge", "wrap"):
    _pads = np.array([0, 0, -1, 1, 0, 0, 1, 0])
    case(f"Pad {_mode}", f'Pad <mode = "{_mode}"> (x, p)', _PICTURES, p=_pads)
case("Pad of a number", "Pad (x, p, v)", _PICTURES, p=np.array([0, 0, 1, 1, 0, 0, 1, 1]), v=f32(0.5))

for _axis in range(4):
    _layers = f"c = Conv (x, k)\n y = Concat <axis = {_axis}> (c, x, w)"
    case(f"Concat {_axis}", _layers, _PICTURES, k=normal(4, 4, 1, 1), w=normal(2, 4, 5, 6))
    _halves = f"c = Conv (x, k)\n y, q = Split <axis = {_axis}> (c, s)"
    _sizes = np.array([1, (2, 4, 5, 6)[_axis] - 1])
    case(f"Split {_axis}", _halves, _PICTURES, results="float[] y, float[] q", k=normal(4, 4, 1, 1), s=_sizes)
for _node, _more in {
    "Reshape (c, s)": {"s": np.array([2, 20, 6])},
    "Flatten (c)": {},
    "Unsqueeze (c, a)": {"a": np.array([1])},
    "Transpose <perm = [0, 2, 3, 1]> (c)": {},
    "Slice (c, s, e, a, t)": {k: np.array([v]) for k, v in {"s": -1, "e": -9, "a": 2, "t": -2}.items()},
    "Expand (c, s)": {"s": np.array([3, 2, 4, 5, 6])},
    "Tile (c, s)": {"s": np.array([1, 2, 1, 2])},
    "Gather <axis = 1> (c, i)": {"i": np.array([0, -1])},
    "DepthToSpace <blocksize = 2> (c)": {},
    'DepthToSpace <blocksize = 2, mode = "CRD"> (c)': {},
    "SpaceToDepth <blocksize = 2> (c)": {},
    "Identity (c)": {},
}.items():
    _size = "1, 4, 6, 6" if "SpaceToDepth" in _node else _PICTURES
    case(_node, f"c = Conv (x, k)\n m = {_node}\n y = Relu (m)", _size, k=normal(4, 4, 1, 1), **_more)
case("Squeeze", "g = GlobalAveragePool (x)\n y = Squeeze (g, a)", _PICTURES, a=np.array([2, 3]))


@pytest.mark.parametrize("name", CASES)
def test_an_operator_computes_in_integers_as_onnxruntime_does(name: str, tmp_path: Path) -> None:
    """Max and Min bring what they compare to the grid of their result first: a step more, behind another kernel."""
    agrees_in_integers(CASES[name], tmp_path, steps=2 if name.startswith(("Max", "Min")) else 1)


def test_each_row_of_the_table_has_a_case() -> None:
    shown = {node.op_type for model in CASES.values() for node in model.graph.node}
    assert {row.partition(":")[0] for row in BACKEND.rules} <= shown
