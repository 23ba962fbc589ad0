"""Single operators with their less common attributes and shapes give what onnxruntime gives."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

pytest.importorskip("torch", reason="the extra torch is not installed")

from onnxq.errors import ModelError
from onnxq.torch.executor import Executor
from tests.installed import needs
from tests.torch.ops.helpers import assert_same

Array = NDArray[Any]
Arrays = dict[str, Any]  # of arrays
Case = tuple[str, str, Arrays, dict[str, Any], Arrays, int, int]

_RANDOM = np.random.default_rng(0)
SAME = ("SAME_UPPER", "SAME_LOWER")
REDUCTIONS = ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp")


def r(*shape: int) -> Array:
    return _RANDOM.standard_normal(shape).astype(np.float32)


def f(*values: float) -> Array:
    return np.array(values, np.float32)


def i(*values: Any) -> Array:
    return np.array(values, np.int64)


def a(**attributes: Any) -> dict[str, Any]:
    return attributes


def one(name: str, op: str, feeds: Arrays, attributes: dict[str, Any] | None = None, outputs: int = 1, opset: int = 20,
        **constants: Array) -> Case:  # fmt: skip
    """A case; names that begin with ``_`` are inputs that are left out."""
    return name, op, feeds, attributes or {}, constants, outputs, opset


def scattered() -> Iterator[Case]:
    for how in ("none", "add", "mul", "max", "min"):
        rows, twice = i([0], [2], [-1]), i([0, 1], [0, 1], [3, -1])
        yield one(f"rows {how}", "ScatterND", {"x": r(4, 3)}, a(reduction=how), i=rows, u=r(3, 3))
        if how != "none":  # which of two updates stays is nobody's promise
            yield one(f"one twice {how}", "ScatterND", {"x": r(4, 3)}, a(reduction=how), i=twice, u=r(3))
        attributes = a(reduction=how, axis=-1)
        yield one(f"elements {how}", "ScatterElements", {"x": r(4, 3)}, attributes, i=i([0, -1], [2, 1]), u=r(2, 2))


def resized() -> Iterator[Case]:
    for size in (5, 7, 10, 13, 20, 33):
        for scale in (0.1, 0.3, 0.6, 0.7, 0.9, 1.04, 1.1, 1.3, 1.7, 2.3):
            for mode in ("linear", "nearest"):
                name = f"{mode} {size} x {scale}"
                yield one(name, "Resize", {"x": r(1, 1, size)}, a(mode=mode), _roi=f(), s=f(1, 1, scale))
    for how in ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric", "align_corners", "asymmetric"):
        for mode in ("linear", "nearest", "cubic"):
            for size in (1, 3, 9, 14):
                attributes = a(mode=mode, coordinate_transformation_mode=how)
                sizes = i(1, 2, size, size + 1)
                yield one(f"{how} {mode} {size}", "Resize", {"x": r(1, 2, 7, 5)}, attributes, _a=f(), _b=f(), z=sizes)
    for how in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"):
        for scale in (0.3, 1.3, 2.4, 2.9):
            attributes = a(nearest_mode=how)
            yield one(f"{how} {scale}", "Resize", {"x": r(1, 1, 17)}, attributes, _roi=f(), s=f(1, 1, scale))
    for mode in ("linear", "nearest"):
        scales = f(1, 1, 1.5, 0.7)
        yield one(f"opset 10 {mode}", "Resize", {"x": r(1, 1, 6, 6)}, a(mode=mode), opset=10, s=scales)


def layers() -> Iterator[Case]:
    for shape in ([7, 8], [8, 8], [9, 7], [6, 6]):
        for pad in ("NOTSET", *SAME):
            for extra in (0, 1):
                attributes = a(strides=[2, 2], output_shape=shape, output_padding=[extra] * 2, auto_pad=pad)
                feeds = {"x": r(1, 2, 4, 4)}
                yield one(f"to {shape} {pad} {extra}", "ConvTranspose", feeds, attributes, w=r(2, 3, 3, 3))
    for pad in SAME:
        for stride in (1, 2, 3):
            attributes = a(strides=[stride] * 2, auto_pad=pad)
            yield one(f"{pad} {stride}", "ConvTranspose", {"x": r(1, 2, 4, 4)}, attributes, w=r(2, 3, 4, 4))
            yield one(f"{pad} {stride}", "Conv", {"x": r(1, 2, 7, 8)}, attributes, w=r(3, 2, 4, 4))
    for ceil in (0, 1):
        for size in (5, 6, 7, 8, 9):
            for kernel, stride, pads in ((2, 2, 0), (3, 2, 1), (3, 3, 1), (2, 3, 0), (3, 2, 0)):
                both = a(kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pads] * 4, ceil_mode=ceil)
                name, feeds = f"{size} by {kernel} {stride} {pads} {ceil}", {"x": r(1, 2, size, size)}
                yield one(name, "MaxPool", feeds, both)
                for inside in (0, 1):
                    yield one(f"{name} {inside}", "AveragePool", feeds, a(**both, count_include_pad=inside))
    attributes = a(kernel_shape=[2], dilations=[3], strides=[2], ceil_mode=1)
    yield one("gaps", "MaxPool", {"x": r(1, 2, 9)}, attributes)
    two = {"x": r(3, 2), "y": r(3, 4)}
    yield one("factors", "Gemm", two, a(transA=1, alpha=0.5, beta=2.0), c=r(2, 1))
    yield one("no C", "Gemm", {"x": r(3, 2), "y": r(2, 4)}, a(beta=0.0), c=np.full((4,), np.nan, np.float32))
    yield one("opset 18", "GroupNormalization", {"x": r(2, 6, 3)}, a(num_groups=3), opset=18, s=r(3), b=r(3))
    yield one("opset 21", "GroupNormalization", {"x": r(2, 6, 3)}, a(num_groups=3), opset=21, s=r(6), b=r(6))
    yield one("three outputs", "LayerNormalization", {"x": r(2, 6, 3)}, a(axis=1), 3, s=r(6, 3))
    yield one("matrix", "BatchNormalization", {"x": r(2, 3)}, s=r(3), b=r(3), m=r(3), v=np.abs(r(3)))
    for direction in ("forward", "reverse", "bidirectional"):
        d = 2 if direction == "bidirectional" else 1
        for op, outputs, gates in (("LSTM", 3, 4), ("GRU", 2, 3), ("RNN", 2, 1)):
            parts: Arrays = {"w": r(d, 4 * gates, 3), "r": r(d, 4 * gates, 4)}
            attributes = a(hidden_size=4, direction=direction)
            starts: Arrays = {"_b": f(), "_length": f(), "h": r(d, 2, 4)}
            yield one(f"{direction} from h", op, {"x": r(5, 2, 3)}, attributes, outputs, **parts, **starts)


def reduced() -> Iterator[Case]:
    for op in (f"Reduce{name}" for name in REDUCTIONS):
        x = np.abs(r(3, 4)) + f(0.1)
        yield one("of nothing", op, {"x": x}, a(noop_with_empty_axes=1), a=i())
        yield one("left out", op, {"x": x}, a(noop_with_empty_axes=1))
        yield one("of all", op, {"x": x}, a(keepdims=0))
        yield one("of a scalar", op, {"x": np.array(2.0, np.float32)})
        if op not in ("ReduceL2", "ReduceLogSum", "ReduceLogSumExp"):
            yield one("of integers", op, {"x": np.arange(-2, 4, dtype=np.int32).reshape(2, 3)}, a=i(-1))
    for op in ("ArgMax", "ArgMin"):
        for last in (0, 1):
            yield one(f"ties {last}", op, {"x": f(1, 3, 3, 1)}, a(axis=-1, select_last_index=last))
    for exclusive in (0, 1):
        for back in (0, 1):
            attributes = a(exclusive=exclusive, reverse=back)
            yield one(f"{exclusive} {back}", "CumSum", {"x": r(3, 5)}, attributes, a=np.array(1, np.int64))
    for op in ("Softmax", "LogSoftmax"):
        for opset in (11, 13):
            yield one(f"opset {opset}", op, {"x": r(2, 3, 4)}, a(axis=1), opset=opset)


def moved() -> Iterator[Case]:
    ends: Arrays = {"s": i(-1, 10), "e": i(-100, -100), "a": i(0, -1), "t": i(-2, -1)}
    yield one("backwards", "Slice", {"x": r(5, 6)}, **ends)
    yield one("beyond", "Slice", {"x": r(5, 6)}, s=i(7), e=i(9), a=i(0))
    yield one("negative", "Pad", {"x": r(5, 6)}, p=i(-1, 2, 1, -2))
    for mode in ("reflect", "edge", "wrap"):
        yield one(mode, "Pad", {"x": r(5, 6)}, a(mode=mode), p=i(2, 0, 1, 3))
    yield one("one axis", "Pad", {"x": r(5, 6)}, p=i(2, 3), v=np.array(1.5, np.float32), a=i(-1))
    yield one("uneven", "Split", {"x": r(7, 2)}, {"num_outputs": 3}, 3)
    yield one("batches", "GatherND", {"x": r(2, 3, 4)}, a(batch_dims=1), i=i([[0], [-1]], [[1], [2]]))
    yield one("from behind", "GatherElements", {"x": r(3, 3)}, a(axis=-2), i=i([-1, 0, 2]))
    yield one("scalar", "Gather", {"x": r(3, 3)}, a(axis=-1), i=np.array(-1, np.int64))
    hot: Arrays = {"d": np.array(3, np.int64), "v": f(2, 5)}
    yield one("outside", "OneHot", {"i": i(0, -1, 5)}, **hot)
    yield one("first axis", "OneHot", {"i": i(0, -1, 2)}, a(axis=0), **hot)
    for axis in (0, -1):
        yield one(f"from {axis}", "Flatten", {"x": r(2, 3, 4)}, a(axis=axis))
    yield one("empty", "Flatten", {"x": r(0, 3, 4)})
    yield one("empty", "Reshape", {"x": r(0, 3)}, a(allowzero=1), s=i(3, 0))
    yield one("ties", "TopK", {"x": f(1, 3, 3, 2)}, None, 2, k=i(2))
    yield one("with its mask", "Dropout", {"x": r(2, 3)}, None, 2)
    for opset in (7, 10, 12):
        yield one(f"mask, opset {opset}", "Dropout", {"x": r(2, 3)}, None, 2, opset=opset)
    yield one("not training", "Dropout", {"x": r(2, 3)}, None, 2, p=np.array(0.5, np.float32), t=np.array(False))
    yield one("to uint8", "Cast", {"x": f(1.7, 200.0)}, a(to=TensorProto.UINT8))
    yield one("crossed", "Clip", {"x": r(5)}, a=np.array(1, np.float32), b=np.array(-1, np.float32))
    yield one("truncated", "Div", {"x": i(-7, 7, 5), "y": i(2, -2, 3)})
    yield one("signs", "Mod", {"x": i(5, -5, 7), "y": i(3, 3, -3)})


CASES = [*scattered(), *resized(), *layers(), *reduced(), *moved()]


_SINCE = {
    "1.24": ("Reduce.* (left out|of nothing)",),
    "1.27": ("Resize nearest (20|33) x 1.3", "Resize round_prefer_floor 1.3", "Resize round_prefer_ceil (0.3|2.9)"),
}
"""What only these versions of onnxruntime and later ones compute as documented, or round as torch does."""


def marked(case: Case) -> Any:
    """A case as a parameter, left out where onnxruntime is too old."""
    name = f"{case[1]} {case[0]}"
    since = (version for version, known in _SINCE.items() if any(re.fullmatch(pattern, name) for pattern in known))
    return pytest.param(case, id=name, marks=[needs("onnxruntime", version) for version in since])


def made(op: str, feeds: Arrays, attributes: dict[str, Any], constants: Arrays, outputs: int, opset: int) -> Any:
    names = [f"o{k}" for k in range(outputs)]
    inputs = [*feeds, *("" if name.startswith("_") else name for name in constants)]
    if attributes.get("auto_pad") == "NOTSET":
        attributes = {k: v for k, v in attributes.items() if k != "auto_pad"}
    types = [
        helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for k, v in feeds.items()
    ]
    held = [numpy_helper.from_array(v, k) for k, v in constants.items() if not k.startswith("_")]
    results = [helper.make_empty_tensor_value_info(name) for name in names]
    graph = helper.make_graph([helper.make_node(op, inputs, names, name="n", **attributes)], "g", types, results, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8 if opset < 21 else 10)


@pytest.mark.parametrize("case", [marked(case) for case in CASES])
def test_operator(case: Case) -> None:
    _, op, feeds, attributes, constants, outputs, opset = case
    model = made(op, feeds, attributes, constants, outputs, opset)
    assert_same(ir.from_proto(model), model.SerializeToString(), feeds)


def test_dropout_of_training_is_refused() -> None:
    model = made("Dropout", {"x": r(2, 3)}, {}, {"p": np.array(0.5, np.float32), "t": np.array(True)}, 1, 20)
    with pytest.raises(ModelError, match=r"'n' \(Dropout\) with training_mode"):
        Executor(ir.from_proto(model))
