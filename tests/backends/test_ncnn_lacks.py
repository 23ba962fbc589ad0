"""What check says of operators that ncnn lacks or that pnnx converts wrongly; ``test_ncnn_runtime.py`` sees that."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxq
from onnxq.backends.ncnn.lacks import ABSENT
from tests.contract import infer
from tests.models import build, f32, feeds_for, normal


def _i(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


_THIRD = {"third": _i(3)}
_LESS = "c = Less (a, half) {} y = Cast <to = 1> (d)"
_GRU: dict[str, Any] = {"w": normal(1, 9, 8), "r": normal(1, 9, 3), "v": normal(3, 3), "zero": _i(0), "one": _i(1)}
ABSENT_FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    **{op: (f"y = {op} (a)", {}) for op in ("Hardmax", "LpNormalization", "Softsign", "ThresholdedRelu", "Trilu")},
    **{
        op: (f"c = {op} (a, half) y = Cast <to = 1> (c)", {"half": f32(0.5)})
        for op in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
    },
    "Not": (_LESS.format("d = Not (c)"), {"half": f32(0.5)}),
    "Where": ("c = Less (a, half) y = Where (c, a, half)", {"half": f32(0.5)}),
    "Cast": ("i = Cast <to = 6> (a) y = Cast <to = 1> (i)", {}),
    "CumSum": ("y = CumSum (a, third)", {"third": np.array(3)}),
    "IsNaN": ("i = IsNaN (a) y = Cast <to = 1> (i)", {}),
    "Mean": ("b = Neg (a) y = Mean (a, b)", {}),
    "ArgMax": ("i = ArgMax <axis = 1> (a) y = Cast <to = 1> (i)", {}),
    "TopK": ("y, i = TopK <axis = 3> (a, third)", _THIRD),
    "GatherElements": ("y = GatherElements <axis = 3> (a, i)", {"i": np.zeros((1, 4, 8, 3), np.int64)}),
    "GatherND": ("n = GatherND (a, i) y = Unsqueeze (n, o)", {"i": np.array([[0, 1], [0, 2]]), "o": _i(0)}),
    "ScatterND": ("y = ScatterND (a, i, u)", {"i": np.array([[0, 1], [0, 2]]), "u": normal(2, 8, 8)}),
    "Tile": ("y = Tile (a, r)", {"r": _i(1, 2, 1, 2)}),
    "LpPool": ("y = LpPool <kernel_shape = [2, 2]> (a)", {}),
    "GlobalLpPool": ("y = GlobalLpPool (a)", {}),
    "ReduceMax whose axes are an input": ("y = ReduceMax (a, third)", _THIRD),
    "ReduceSumSquare whose axes are an input": ("y = ReduceSumSquare (a, third)", _THIRD),
    "MaxPool with dilations": ("y = MaxPool <kernel_shape = [2, 2], dilations = [2, 2]> (a)", {}),
    "AveragePool with other padding": ("y = AveragePool <kernel_shape = [3, 3], pads = [0, 0, 1, 1]> (a)", {}),
    "ConvTranspose with other padding": (
        "y = ConvTranspose <strides = [2, 2], pads = [0, 0, 1, 1]> (a, w)", {"w": normal(4, 4, 3, 3)}
    ),
    "ConvTranspose with auto_pad": (
        'y = ConvTranspose <strides = [2, 2], auto_pad = "SAME_UPPER"> (a, w)', {"w": normal(4, 4, 3, 3)}
    ),
    "Conv with auto_pad": ('y = Conv <auto_pad = "SAME_LOWER"> (a, w)', {"w": normal(4, 4, 3, 3)}),
    "DepthToSpace of mode DCR": ("y = DepthToSpace <blocksize = 2> (a)", {}),
    "Selu with constants": ("y = Selu <alpha = 2.0, gamma = 1.1> (a)", {}),
    **{
        f"{op} whose last state": (
            f"""t = Squeeze (a, zero) b = Slice (t, zero, one, zero) d = Squeeze (b, zero) e = Unsqueeze (d, one)
            o, h = {op} <hidden_size = 3{form}> (e, w, r) m = MatMul (h, v) y = Unsqueeze (m, zero)""",
            {**_GRU, "w": normal(1, 3 * gates, 8), "r": normal(1, 3 * gates, 3)},
        )
        for op, gates, form in (("LSTM", 4, ""), ("GRU", 3, ", linear_before_reset = 1"), ("RNN", 1, ""))
    },
    "Reshape to 6 axes": (
        "r = Reshape (a, six) t = Tanh (r) y = Reshape (t, four)", {"six": _i(1, 4, 4, 2, 4, 2), "four": _i(1, 4, 8, 8)}
    ),
    "Reshape to 5 axes of which the first is another": (
        "r = Reshape (a, five) t = Transpose <perm = [2, 0, 1, 3, 4]> (r) y = Reshape (t, four)",
        {"five": _i(4, 4, 2, 4, 2), "four": _i(1, 4, 8, 8)},
    ),
    "Slice that steps": ("y = Slice (a, s, e, k, t)", {"s": _i(0), "e": _i(8), "k": _i(3), "t": _i(2)}),
}  # fmt: skip
"""Operators and forms that ncnn does not load."""
WRONG_FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "SpaceToDepth": ("y = SpaceToDepth <blocksize = 2> (a)", {}),
    "Gather of a constant list": ("y = Gather <axis = 1> (a, i)", {"i": _i(0, 2, 3)}),
    "Slice that steps backwards": ("y = Slice (a, s, e, k, t)", {"s": _i(-1), "e": _i(-99), "k": _i(3), "t": _i(-1)}),
    "GridSample of mode cubic": ('y = GridSample <mode = "cubic"> (a, grid)', {"grid": 0.4 * normal(1, 8, 8, 2)}),
    "Pad that wraps": ('y = Pad <mode = "wrap"> (a, p)', {"p": _i(0, 0, 1, 1, 0, 0, 1, 2)}),
    "ReduceMean of one axis": (
        "f = Reshape (a, deep) m = ReduceMean <keepdims = 0> (f, two) y = Neg (m)",
        {"deep": _i(1, 2, 2, 8, 8), "two": _i(2)},
    ),
    "MaxPool with auto_pad": ('y = MaxPool <kernel_shape = [3, 3], strides = [2, 2], auto_pad = "SAME_UPPER"> (a)', {}),
    "LayerNormalization over several": (
        "y = LayerNormalization <axis = 1> (a, s, s)", {"s": normal(4, 8, 8)}
    ),
    "asymmetric coordinates": (
        'y = Resize <mode = "linear", coordinate_transformation_mode = "asymmetric"> (a, , t)',
        {"t": f32([1, 1, 2, 2])},
    ),
    "nearest element below": (
        'y = Resize <mode = "nearest", nearest_mode = "floor"> (a, , t)', {"t": f32([1, 1, 2, 2])}
    ),
    "behind a Conv of several samples": (
        """f = Reshape (a, frames) c = Conv (f, k) d = Flatten (c) t = Unsqueeze (d, one)
        h = GRU <hidden_size = 3, linear_before_reset = 1> (t, w, r)
        s = Squeeze (h, one) m = MatMul (s, v) y = Unsqueeze (m, zero)""",
        {"frames": _i(4, 1, 8, 8), "k": normal(2, 1, 7, 7), **_GRU},
    ),
    "GRU the steps of which are the first axis of what a Neg gives": (
        """t = Squeeze (a, zero) b = Slice (t, zero, one, zero) d = Squeeze (b, zero) e = Unsqueeze (d, one) n = Neg (e)
        h = GRU <hidden_size = 3, linear_before_reset = 1> (n, w, r)
        s = Squeeze (h, one) m = MatMul (s, v) y = Unsqueeze (m, zero)""",
        _GRU,
    ),
    "GRU without linear_before_reset": (
        """t = Squeeze (a, zero) b = Slice (t, zero, one, zero) d = Squeeze (b, zero) e = Unsqueeze (d, one)
        h = GRU <hidden_size = 3> (e, w, r) s = Squeeze (h, one) m = MatMul (s, v) y = Unsqueeze (m, zero)""",
        _GRU,
    ),
}  # fmt: skip
"""Operators and forms that it computes otherwise."""


def model_with(form: str) -> onnx.ModelProto:
    """A float model with one of these behind a Conv."""
    text, constants = {**ABSENT_FORMS, **WRONG_FORMS}[form]
    return build(
        f"(float[1, 3, 8, 8] x) => (float[b, c, d, e] y) {{ g = Conv (x, first) a = Sigmoid (g) {text} }}",
        opset=20 if "GridSample" in form else 19,
        first=normal(4, 3, 1, 1, seed=9),
        **constants,
    )


@pytest.mark.parametrize("form", [*ABSENT_FORMS, *WRONG_FORMS])
def test_what_ncnn_lacks_or_makes_otherwise_is_told(form: str) -> None:
    found = onnxq.check(model_with(form), backend="ncnn")
    told = [f.what for f in found if f.level == "warning" and f.where.startswith("node") and form in f.what]
    assert told and all(("wrongly" in what) == (form in WRONG_FORMS) for what in told)


def picked(source: str, axis: int) -> onnx.ModelProto:
    """A Gather at indices that are an input, of a constant or of an input."""
    inputs = "int64[2] i" + (", float[4, 4] x" if source == "x" else "")
    text = f"({inputs}) => (float[a, b] y) {{ g = Gather <axis = {axis}> ({source}, i) y = Relu (g) }}"
    return build(text, table=normal(4, 4)) if source == "table" else build(text)


@pytest.mark.parametrize(("source", "axis", "told"), [("table", 0, False), ("table", 1, True), ("x", 0, True)])
def test_a_gather_at_computed_indices_is_told_but_of_rows_of_a_constant(source: str, axis: int, told: bool) -> None:
    found = onnxq.check(picked(source, axis), backend="ncnn")
    assert any("ncnn has no Gather at computed indices" in f.what for f in found) == told


def of_doubles() -> onnx.ModelProto:
    return build("(double[2, 2] x) => (double[2, 2] y) { y = Add (x, x) }")


def test_inputs_of_doubles_are_told() -> None:
    told = [f.what for f in onnxq.check(of_doubles(), backend="ncnn") if f.where == "input 'x'"]
    assert "ncnn does not run what pnnx makes of double inputs" in told


def steps_of_a_line() -> onnx.ModelProto:
    """A recurrent layer behind a Conv of one sample, whose columns are the steps."""
    return build(
        """(float[1, 1, 8, 8] x) => (float[1, 8, 1, 3] y) {
            c = Conv (x, k)
            d = Squeeze (c, two)
            t = Transpose <perm = [2, 0, 1]> (d)
            h = GRU <hidden_size = 3, linear_before_reset = 1> (t, w, r)
            s = Squeeze (h, one)
            m = MatMul (s, v)
            y = Unsqueeze (m, zero)
        }""",
        k=normal(8, 1, 8, 1),
        two=_i(2),
        **_GRU,
    )


def test_a_recurrent_layer_behind_one_sample_is_not_told() -> None:
    assert not [f for f in onnxq.check(steps_of_a_line(), backend="ncnn") if f.where.startswith("node")]


def test_what_it_has_is_not_told() -> None:
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4] y, float[1, 1, 8, 8] z) {
            a = Conv <auto_pad = "SAME_UPPER"> (x, w)
            b = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (a)
            c = Resize <mode = "linear"> (b, , t)
            d = Pad <mode = "reflect"> (c, p)
            e = Slice (d, s, n, k)
            f = Add (a, e)
            z = ReduceMax <axes = [1]> (f)
            g = GlobalAveragePool (f)
            y = Flatten (g)
        }""",
        w=normal(4, 3, 3, 3),
        t=f32([1, 1, 2, 2]),
        p=_i(0, 0, 1, 1, 0, 0, 1, 1),
        s=_i(1, 1),
        n=_i(9, 9),
        k=_i(2, 3),
    )
    assert not [f for f in onnxq.check(model, backend="ncnn") if f.where.startswith("node")]


def test_each_name_is_of_an_operator() -> None:
    assert {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""} >= ABSENT


def test_inputs_of_other_types_are_told() -> None:
    model = build("(bool[1, 4] m, float[1, 4] x) => (float[1, 4] y) { y = Where (m, x, zero) }", zero=f32(0))
    (told,) = [f for f in onnxq.check(model, backend="ncnn") if f.where == "input 'm'"]
    assert told.level == "warning" and "bool" in told.what


ONE_AXIS = ("ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceMean", "ReduceSum")


def reduction(op: str, axis: int, keepdims: int) -> onnx.ModelProto:
    """A reduction of one axis that is an input."""
    sizes = "b, c, d, e" if keepdims else "b, c, d"
    return build(
        f"""(float[1, 3, 6, 7] x) => (float[{sizes}] y) {{
            a = Conv (x, w)
            y = {op} <keepdims = {keepdims}> (a, axes)
        }}""",
        opset=18,
        w=normal(4, 3, 1, 1),
        axes=_i(axis),
    )


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axis", [1, -1])
@pytest.mark.parametrize("op", ONE_AXIS)
def test_a_reduction_of_one_axis_reduces_one_more_and_computes_the_same(op: str, axis: int, keepdims: int) -> None:
    model = reduction(op, axis, keepdims)
    feeds = feeds_for(model, samples=2)
    made = onnxq.quantize(model, feeds, backend="ncnn", options=onnxq.Options(exclude=("Conv",)))
    result = made.fake_quantize()
    (reduces,) = [node for node in result.graph.all_nodes() if node.op_type == op]
    assert reduces.inputs[1] is not None and reduces.inputs[1].const_value is not None
    assert reduces.inputs[1].const_value.numpy().size == 2
    for before, after in zip(
        infer(model, feeds, optimize=False)["y"], infer(ir.to_proto(result), feeds, optimize=False)["y"], strict=True
    ):
        np.testing.assert_allclose(after, before, rtol=1e-6, atol=1e-6)
