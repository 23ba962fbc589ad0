"""Faults that random graphs showed on Qualcomm's targets and Tengine, each in its smallest form; what the verdict knows
of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

from onnxq import Options, Quantized, check, quantize
from onnxq.options import Placement
from tests.contract import ALL, infer, sqnr
from tests.fuzzing.graphs import Case
from tests.fuzzing.judge import judge
from tests.fuzzing.noise import explained
from tests.fuzzing.tengine import as_tengine
from tests.models import build, f32, images, normal

Feeds = list[dict[str, NDArray[Any]]]


def judged(
    model: onnx.ModelProto, feeds: Feeds, backend: str, placement: Placement = "all", form: str | None = None
) -> tuple[Quantized, onnx.ModelProto, dict[str, float]]:
    """A result that satisfies the contract, its rendering, and dB of its float outputs against the float model."""
    options = Options(placement=placement, format=form)
    verdict = judge(Case(1, model, feeds), backend, placement)
    assert verdict.outcome in ("quantized", "untouched"), verdict.text
    quantized = quantize(model, feeds, backend=backend, options=options)
    result = ir.to_proto(quantized.rendered())
    expected, got = infer(model, feeds, optimize=False), infer(result, feeds, optimize=quantized.backend.mixes)
    return quantized, result, {name: sqnr(expected[name], got[name]) for name in expected}


def test_half_precision_made_by_a_cast_read_inside_and_given_out() -> None:
    """What else reads it computes in float32."""
    model = build(
        """(float[2, 4] x, float16[2, 4] h) => (float16[2, 4] c, float16[2, 8] y) {
            c = Cast <to = 10> (x)
            y = Concat <axis = 1> (c, h)
        }"""
    )
    feeds = [{"x": f["x"], "h": (f["x"] / 2).astype(np.float16)} for f in images(2, 4)]
    _, _, scores = judged(model, feeds, "onnxruntime", "auto")
    assert min(scores.values()) > 60  # c is not rounded to half precision where y is made


ACTIVATIONS = ("Elu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "PRelu", "Selu", "Softplus", "Softsign",
               "ThresholdedRelu")  # fmt: skip


@pytest.mark.parametrize("opset", [16, 17, 18])
def test_activations_of_doubles_in_a_target_of_a_later_opset(opset: int) -> None:
    """onnxruntime loads these for float64 where their definitions' opset is the model's, and in no later one."""
    names = ACTIVATIONS if opset == 18 else ("LeakyRelu", "PRelu")
    outputs = ", ".join(f"double[2, 9] y_{name}" for name in names)
    nodes = [f"y_{op} = {op} (x{', slope' if op == 'PRelu' else ''})" for op in names]
    nodes[0] = nodes[0].replace(" (x", " <alpha = 0.3> (x")
    model = build(
        f"(double[2, 9] x) => ({outputs}) {{ {' '.join(nodes)} }}",
        opset=opset,
        slope=np.linspace(0.1, 0.9, 9),
    )
    feeds: Feeds = [{"x": f["x"].astype(np.float64) * 2} for f in images(2, 9)]
    _, result, scores = judged(model, feeds, "qnn")
    assert min(scores.values()) > 200
    made = {node.output[0]: node.op_type for node in result.graph.node}
    assert set(made) >= {f"y_{op}" for op in names} and not set(made.values()) & set(ACTIVATIONS)


def test_activations_of_doubles_stay_where_the_opset_does() -> None:
    model = build("(double[2, 9] x) => (double[2, 9] y) { y = Mish (x) }", opset=18)
    feeds: Feeds = [{"x": f["x"].astype(np.float64)} for f in images(2, 9)]
    _, result, _ = judged(model, feeds, "onnxruntime")
    assert [node.op_type for node in result.graph.node] == ["Mish"]


@pytest.mark.parametrize("op", ["AveragePool", "MaxPool"])
@pytest.mark.parametrize("backend", ["onnxruntime", "qnn"])
def test_window_that_would_begin_behind_the_input(op: str, backend: str) -> None:
    """onnx's shape inference counts it, onnxruntime does not: 2 rows, or 3; the model says so rightly."""
    model = build(
        f"""(float[1, 2, 3, 7] x) => (float[1, 4, 2, 4] y) {{
            e = Identity (size)
            s = Reshape (x, e)
            p = {op} <kernel_shape = [2, 2], strides = [2, 2], pads = [1, 0, 1, 0], ceil_mode = 1> (s)
            y = Conv (p, w)
        }}""",
        opset=12,
        size=np.asarray([1, 2, 3, 7]),
        w=normal(4, 2, 1, 1),
    )
    assert infer(model, images(1, 2, 3, 7), optimize=False)["y"][0].shape == (1, 4, 2, 4)
    _, _, scores = judged(model, images(1, 2, 3, 7), backend)
    assert scores["y"] > 30


def test_product_by_a_vector_behind_a_transpose() -> None:
    """onnxruntime's optimizations get the float model wrong, and with it the ranges that were observed there."""
    model = build(
        """(float[1, 12, 7] x) => (float[1, 7] y, float[1, 7] z) {
            t = Transpose <perm = [0, 2, 1]> (x)
            y = MatMul (t, w)
            v = ReduceMean <axes = [0, 1], keepdims = 0> (t)
            z = MatMul (t, v)
        }""",
        w=normal(12, scale=1.0),
    )
    feeds = images(1, 12, 7)
    plain, optimized = (infer(model, feeds, optimize=optimize) for optimize in (False, True))
    assert sqnr(plain["y"], optimized["y"]) < 10, "onnxruntime computes it: the rewriting is needed no longer"
    for backend in ("onnxruntime", "qnn"):
        quantized, _, scores = judged(model, feeds, backend)
        assert min(scores.values()) > 30, scores
        assert quantized.plan.quantized


@pytest.mark.parametrize("end", ["y = Softmax (s)", "p = Softmax (s) y = Add (p, s)"])
def test_rows_of_one_element_that_the_model_does_not_tell(end: str) -> None:
    """QLinearSoftmax gives 0 there, not 1, on its own grid of 1/256."""
    model = build(
        f"(float[2, 6] x, int64[2] size) => (float[a, b] y) {{ r = Reshape (x, size) s = Sigmoid (r) {end} }}"
    )
    feeds: Feeds = [{**f, "size": np.asarray([12, 1] if k % 2 else [1, 12])} for k, f in enumerate(images(2, 6))]
    quantized, result, scores = judged(model, feeds, "onnx_qnn")
    assert scores["y"] > 40
    assert "QLinearSoftmax" not in {node.op_type for node in result.graph.node}
    assert "Softmax" in {kept.op for kept in quantized.plan.kept_float}


def test_step_of_a_mean_far_finer_than_of_what_it_is_of() -> None:
    """QLinearGlobalAveragePool refuses from a ratio on."""
    model = build("(float[1, 2, 8, 8] x) => (float[1, 2, 1, 1] y) { y = GlobalAveragePool (x) }")
    wide = f32(np.tile([1000, -1000], 64)).reshape(1, 2, 8, 8)
    feeds = [{"x": wide + f["x"] / 100} for f in images(1, 2, 8, 8)]
    quantized, _, _ = judged(model, feeds, "onnx_qnn")
    x, y = (float(quantized.qparams[name].scale) for name in "xy")
    assert x / y <= 250.1


@pytest.mark.parametrize("backend", ["onnxruntime", "onnx_qnn"])
def test_pool_whose_window_is_larger_than_its_input(backend: str) -> None:
    """onnxruntime takes it; its two kernels divide by different counts where the padding is included."""
    text = "(float[1, 3, 4, 2] x) => (float[1, 3, 2, 1] y) { y = AveragePool <kernel_shape = [2, 3], COUNT> (x) }"
    text = text.replace("COUNT", "strides = [2, 2], count_include_pad = 1")
    quantized, _, scores = judged(build(text), images(1, 3, 4, 2), backend)
    assert scores["y"] > 60 and not quantized.plan.quantized
    padded = text.replace("strides", "pads = [0, 1, 0, 0], strides")
    quantized, _, scores = judged(build(padded), images(1, 3, 4, 2), backend)
    assert scores["y"] > 30 and quantized.plan.quantized


@pytest.mark.parametrize("form", ["qoperator", "qdq"])
def test_rows_of_a_table_in_the_integers_of_the_table(form: str) -> None:
    """The plan names the Gather that the result has, and onnxruntime gathers integers in both formats."""
    model = build("(int64[2, 3] x) => (float[2, 3, 4] y) { g = Gather (table, x) y = Sigmoid (g) }", table=normal(5, 4))
    model.graph.node[0].name = "rows"
    rng = np.random.default_rng(0)
    feeds: Feeds = [{"x": rng.integers(0, 5, (2, 3))} for _ in range(8)]
    quantized, result, scores = judged(model, feeds, "onnx_qnn", form=form)
    assert scores["y"] > 40
    assert "rows" in quantized.plan.quantized
    assert [node.op_type for node in result.graph.node if node.name == "rows"] == ["Gather"]


def test_weights_in_constant_nodes_are_rounded_as_others() -> None:
    """The verdict's noise: a small number beside a large one, cut out of a weight of either form."""
    weight = f32([-2.7, 0.034])
    text = "(float[1] x) => (float[1] y) { CONST p = Slice (w, one, two) y = Add (p, x) }"
    one, two = np.asarray([1]), np.asarray([2])
    stored = build(text.replace("CONST", ""), w=weight, one=one, two=two)
    inside = build(text.replace("CONST", "w = Constant <value = float[2] {-2.7, 0.034}> ()"), one=one, two=two)
    feeds = [{"x": f32([1e-6])}]
    found = [explained(model, feeds)["y"] for model in (stored, inside)]
    assert max(found) < 25 and abs(found[0] - found[1]) < 3


@pytest.mark.parametrize("opset", [10, 17])
def test_output_in_front_of_a_relu_in_tengine(opset: int) -> None:
    """Its tensor has the range of the Relu's: the verdict cuts it off in the float model, and ``check`` says so."""
    text = """(float[1, 2, 6, 6] x) => (float[1, 4, 6, 6] c, float[1, 4, 3, 3] y) {
        c = Conv (x, w)
        s = Slice (c, zero, three, axes)
        t = Slice (s, zero, three, last)
        y = Relu (t)
    }"""
    numbers = {"zero": [0], "three": [3], "axes": [2], "last": [3]}
    model = build(text, opset=opset, w=normal(4, 2, 1, 1))
    for name, number in numbers.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(number), name))
    feeds = images(1, 2, 6, 6)
    float_, cut = (infer(m, feeds, optimize=False) for m in (model, as_tengine(Case(1, model, feeds)).model))
    top = max(float(a.max()) for a in float_["y"])
    assert all(np.array_equal(np.clip(a, 0, np.float32(top)), b) for a, b in zip(float_["c"], cut["c"], strict=True))
    assert all(np.array_equal(a, b) for a, b in zip(float_["y"], cut["y"], strict=True))
    _, _, scores = judged(model, feeds, "tengine")
    assert scores["c"] < 12 and scores["y"] > 30
    assert any(f.where == "output 'c'" and "range of the Slice" in f.what for f in check(model, backend="tengine"))


@pytest.mark.parametrize("rest", ["y = Neg (c)", "r = Relu (c) z = Abs (c) y = Add (r, z)"])
def test_output_that_tengine_gives_whole(rest: str) -> None:
    """Another node reads it, or one that does not pass its numbers on."""
    outputs = "float[1, 4, 6, 6] c, float[1, 4, 6, 6] y"
    model = build(f"(float[1, 2, 6, 6] x) => ({outputs}) {{ c = Conv (x, w) {rest} }}", w=normal(4, 2, 1, 1))
    case = Case(1, model, images(1, 2, 6, 6))
    assert as_tengine(case) is case
    _, _, scores = judged(model, case.feeds, "tengine")
    assert scores["c"] > 30
    assert not any(f.where == "output 'c'" for f in check(model, backend="tengine"))


def test_data_of_next_to_nothing_in_front_of_an_ordinary_bias() -> None:
    """The weight's scale makes room for the bias, and gives it back where the range of the data is widened."""
    model = build(
        "(float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) { s = Mul (x, k) y = Conv <pads = [1, 1, 1, 1]> (s, w, b) }",
        k=f32(1e-20),
        w=normal(4, 4, 3, 3),
        b=normal(4),
    )
    made = quantize(model, images(1, 4, 8, 8), backend="qnn", options=ALL)
    checked = made.verification
    assert checked is not None and checked.worst is not None and checked.worst[1].sqnr > 30


@pytest.mark.parametrize("backend", ["qnn", "snpe"])
def test_a_cubic_resize_goes_beyond_its_input(backend: str) -> None:
    """Input and output have one grid, which held the input's numbers alone: 22 dB."""
    model = build(
        """(float[1, 2, 6, 6] x) => (float[1, 2, 12, 12] y) {
            y = Resize <mode = "cubic"> (x, , by)
        }""",
        by=f32([1, 1, 2, 2]),
    )
    feeds = [{"x": np.where(f["x"] > 0, np.float32(1), np.float32(0))} for f in images(1, 2, 6, 6)]
    _, _, scores = judged(model, feeds, backend)
    assert scores["y"] > 40
