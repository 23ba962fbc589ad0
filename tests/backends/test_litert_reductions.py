"""Reductions, softmax and normalizations of floats, as LiteRT's interpreter computes them, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from tests.backends.litert_interpreter import agrees, one, refusal
from tests.models import normal

pytest.importorskip("ai_edge_litert")

OLD = tuple(map(int, ort.__version__.split(".")[:2])) < (1, 32)
_KERNEL = normal(4, 3, 1, 1)
_AXES = ([0], [1], [3], [-1], [2, 3], [1, 2], [0, 3], [3, 1], [0, 1, 2, 3])
_LIKE_SUMS = ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd")
_COMPOSED = ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare")


def behind(node: str, results: str = "float[] y", before: str = "Identity", **constants: Any) -> onnx.ModelProto:
    """A node that reads ``d``, a function of what a convolution gives, whose channels are at the end."""
    steps = f"c = Conv (x, k)\n d = {before} (c)\n y = {node}"
    return one(steps, "2, 3, 3, 4", results=results, k=_KERNEL, **constants)


@pytest.mark.parametrize("keeps", [0, 1])
@pytest.mark.parametrize("axes", _AXES)
@pytest.mark.parametrize("op", [*_LIKE_SUMS, *_COMPOSED])
def test_axes_are_reduced(op: str, axes: list[int], keeps: int) -> None:
    before = {"ReduceLogSum": "Abs", "ReduceProd": "Exp"}.get(op, "Identity")
    agrees(behind(f"{op} <keepdims = {keeps}> (d, a)", before=before, a=np.array(axes)))


@pytest.mark.skipif(OLD, reason="onnxruntime 1.23 does not reduce no axis")
@pytest.mark.parametrize("op", [*_LIKE_SUMS, *_COMPOSED])
def test_all_axes_are_reduced_or_none(op: str) -> None:
    agrees(one(f"d = Abs (x)\n y = {op} <keepdims = 0> (d)", "2, 3, 4"))
    agrees(one(f"d = Abs (x)\n y = {op} <noop_with_empty_axes = 1> (d)", "3, 4"))


@pytest.mark.parametrize("op", _LIKE_SUMS)
def test_integers_that_stand_for_themselves_are_reduced(op: str) -> None:
    agrees(one(f"{op} (x, a)", "int32[3, 4]", a=np.array([1]), results="int32[] y"))


def test_reductions_without_a_kernel_are_refused() -> None:
    squares = one("ReduceSumSquare (x, a)", "int64[3, 4]", a=np.array([1]), results="int64[] y")
    assert refusal(squares) == "TensorFlow Lite has no SQUARE of int64"
    truths = one("ReduceMax (x, a)", "bool[3, 4]", a=np.array([1]), results="bool[] y")
    assert refusal(truths) == "TensorFlow Lite has no REDUCE_MAX of bool"


@pytest.mark.parametrize("keeps", [0, 1])
@pytest.mark.parametrize("axis", range(-1, 4))
@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_where_the_largest_and_the_smallest_are(op: str, axis: int, keeps: int) -> None:
    agrees(behind(f"{op} <axis = {axis}, keepdims = {keeps}> (d)", results="int64[] y"))


def test_the_last_of_equal_elements_is_refused() -> None:
    model = one("ArgMax <select_last_index = 1> (x)", "3, 4", results="int64[] y")
    assert refusal(model) == "TensorFlow Lite takes the first of equal elements"


@pytest.mark.parametrize("flags", ["", "exclusive = 1", "reverse = 1", "exclusive = 1, reverse = 1"])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_running_sums(axis: int, flags: str) -> None:
    where = f"<{flags}>" if flags else ""
    agrees(behind(f"CumSum {where} (d, a)", a=np.array(axis)))


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("axis", range(-1, 3))
def test_the_largest_and_the_smallest_of_an_axis(axis: int, largest: int) -> None:
    node = f"y, i = TopK <axis = {axis}, largest = {largest}> (x, k)"
    agrees(one(node, "3, 4, 5", results="float[] y, int64[] i", k=np.array([2])))


@pytest.mark.parametrize("axis", range(-1, 4))
@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "LpNormalization"])
def test_an_axis_is_normalized(op: str, axis: int) -> None:
    agrees(behind(f"{op} <axis = {axis}> (d)"))
    agrees(one(f"{op} <axis = {min(axis, 2)}> (x)", "3, 2, 4"))
    agrees(one(f"{op} <axis = 0> (x)", "5"))


@pytest.mark.skipif(OLD, reason="onnxruntime 1.23 broadcasts no scale of a LayerNormalization")
@pytest.mark.parametrize("axis", [1, 2, -1])
def test_layers_are_normalized(axis: int) -> None:
    sizes = (4, 3, 4)[axis - 1 if axis > 0 else axis :]
    scale, bias = normal(*sizes, scale=1.0), normal(*sizes, seed=2, scale=1.0)
    agrees(behind(f"LayerNormalization <axis = {axis}> (d, s, b)", s=scale, b=bias))
    agrees(behind(f"LayerNormalization <axis = {axis}, epsilon = 0.1> (d, s)", s=scale))
    agrees(behind(f"LayerNormalization <axis = {axis}> (d, s)", s=normal(4)))  # broadcast to all axes
    rows = one(f"RMSNormalization <axis = {axis}> (x, s)", "2, 4, 3, 4", opset=23, s=scale)
    agrees(rows)


@pytest.mark.parametrize("sizes", ["5", "4, 5", "2, 4, 5"])
def test_channels_are_normalized(sizes: str) -> None:
    scale, bias = normal(3), normal(3, seed=2)
    agrees(one("InstanceNormalization (x, s, b)", f"2, 3, {sizes}", s=scale, b=bias))
    numbers: dict[str, Any] = {"s": scale, "b": bias, "m": normal(3, seed=3), "v": np.abs(normal(3, seed=4))}
    agrees(one("BatchNormalization (x, s, b, m, v)", f"2, 3, {sizes}", **numbers))


@pytest.mark.parametrize("size", [1, 3, 5])
def test_neighbours_are_normalized(size: int) -> None:
    agrees(one(f"LRN <size = {size}, alpha = 0.3, beta = 0.6, bias = 2.0> (x)", "2, 7, 3, 4"))


def test_normalizations_that_are_refused() -> None:
    assert "over as many on both sides" in refusal(one("LRN <size = 4> (x)", "2, 7, 3, 4"))
    assert "another norm" in refusal(one("LpNormalization <p = 1> (x)", "2, 3"))
    two = one("y, m = LayerNormalization (x, s)", "2, 3", results="float[] y, float[] m", s=normal(3))
    assert refusal(two) == "its mean or deviation is read"
    assert refusal(one("LayerNormalization (x, z)", "2, 3", "3")) == "its scale or its bias is computed"
