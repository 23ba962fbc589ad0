"""Faults that random graphs showed, each in its smallest form."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxq import ModelError, Options, calibrate, check, quantize
from tests.contract import ALL, infer, quantize_checked, sqnr
from tests.fuzzing.graphs import generate
from tests.fuzzing.judge import judge
from tests.installed import has
from tests.models import build, f32, images, normal, renamed, verified_sqnr


def test_a_target_that_refuses_a_model_does_not_keep_others_from_it() -> None:
    """Tengine's table cannot hold a blank in the name of an output; calibration looks at all targets."""
    model = renamed(
        build("(float[1, 4, 8, 8] x) => (float[1, 4, 6, 6] y) { y = Conv (x, w) }", w=normal(4, 4, 3, 3)),
        {"y": "y of this"},
    )
    assert calibrate(model, images(1, 4, 8, 8)).samples == 6
    quantize_checked(model, images(1, 4, 8, 8))
    with pytest.raises(ModelError, match="blanks"):
        quantize(model, images(1, 4, 8, 8), backend="tengine")


def test_layernorm_of_one_element() -> None:
    """0/0 while a pattern is tried out is no warning of the user's."""
    model = build(
        """(float[4, 1] x) => (float[4, 3] y) {
            m = ReduceMean <axes = [-1]> (x)
            c = Sub (x, m)
            s = Pow (c, two)
            v = ReduceMean <axes = [-1]> (s)
            e = Add (v, eps)
            r = Sqrt (e)
            n = Div (c, r)
            g = Add (n, x)
            y = MatMul (g, w)
        }""",
        two=f32(2),
        eps=f32(1e-3),
        w=normal(1, 3),
    )
    quantize_checked(model, images(4, 1))


@pytest.mark.parametrize("mode", ["reflect", "edge"])
def test_pad_value_where_nothing_is_padded_with_it(mode: str) -> None:
    model = build(
        f"""(float[1, 4, 6, 6] x) => (float[1, 4, 6, 6] y) {{
            p = Pad <mode = "{mode}", pads = [0, 0, 1, 1, 0, 0, 1, 1], value = 1.0> (x)
            y = Conv (p, w)
        }}""",
        opset=10,
        w=normal(4, 4, 3, 3),
    )
    quantize_checked(model, images(1, 4, 6, 6))


def test_pad_of_doubles() -> None:
    model = build("(double[1, 12] x) => (double[2, 14] y) { y = Pad <pads = [1, 1, 0, 1], value = 2.0> (x) }", opset=7)
    quantize_checked(model, [{"x": np.ones((1, 12))}], least=None)


def test_default_declared_with_a_free_dimension() -> None:
    model = build(
        "(float[1, 4, 6, 6] x, float[M, 4, 3, 3] w) => (float[1, 4, 4, 4] y) { y = Conv (x, w) }", w=normal(4, 4, 3, 3)
    )
    quantize_checked(model, images(1, 4, 6, 6), least=None)
    wrong = onnx.ModelProto.FromString(model.SerializeToString())
    wrong.graph.input[1].type.tensor_type.shape.dim[1].dim_value = 5
    with pytest.raises(ModelError, match="declared with shape"):
        quantize(wrong, images(1, 4, 6, 6))


@pytest.mark.parametrize("rows", [1, 2])
def test_softmax_over_one_element(rows: int) -> None:
    """onnxruntime's integer Softmax gives 0 where there is one element, also where only its neighbours are integers."""
    model = build(
        f"""(float[6, {rows}] x) => (float[6, {2 * rows}] y) {{
            a = Transpose <perm = [0, 1]> (x)
            s = Softmax <axis = -1> (a)
            y = Concat <axis = 1> (s, s)
        }}"""
    )
    assert quantize_checked(model, images(6, rows)).worst > 35


def test_division_by_what_rounds_to_zero() -> None:
    """No NaN where everything is quantized: what stands before the division stays float."""
    model = build("(float[40, 8] x) => (float[40, 8] y) { a = MatMul (x, w) y = Div (a, a) }", w=normal(8, 8))
    feeds = [{"x": np.concatenate([f["x"], f["x"] * f32(1e-4)])} for f in images(20, 8)]
    result = quantize_checked(model, feeds, least=None)
    assert "amplifies" in "".join(result.reasons.values())


def test_mean_of_next_to_nothing() -> None:
    """onnxruntime's kernel refuses a mean whose step is 256 times finer than that of what it is the mean of."""
    model = build(
        """(float[2, 4, 8, 8] x) => (float[2, 4, 1, 1] y) {
            m = ReduceMean <axes = [2, 3]> (x)
            d = Sub (x, m)
            y = GlobalAveragePool (d)
        }"""
    )
    quantize_checked(model, images(2, 4, 8, 8), least=None)


def test_bias_correction_knows_the_padding() -> None:
    """A Conv that reads nothing but padding: rounding its weights changes no output, so its bias must stay."""
    model = build(
        """(float[8, 5, 1] x) => (float[8, 4, 1] y) {
            y = Conv <pads = [1, 0], strides = [3], kernel_shape = [1]> (x, w, b)
        }""",
        w=normal(4, 5, 1),
        b=f32([-1.75, 1.0, 3.5, 0.8]),
    )
    feeds = [{"x": f["x"] + f32(20)} for f in images(8, 5, 1)]
    assert quantize_checked(model, feeds).worst > 40


def test_padding_counts_for_as_much_as_it_is() -> None:
    """Against the means that onnxruntime finds: corrected biases leave a smaller mean error than none."""
    model = build(
        "(float[1, 3, 4, 4] x) => (float[1, 8, 4, 4] y) { y = Conv <pads = [1, 1, 1, 1]> (x, w, b) }",
        w=normal(8, 3, 3, 3, scale=2.0),
        b=normal(8, seed=1),
    )
    feeds = [{"x": f["x"] * f32(0.05) + f32(4)} for f in images(1, 3, 4, 4, samples=8)]
    error = {}
    for correct in (True, False):
        options = Options(placement="all", weight_bits=4, bias_correction=correct)
        made = quantize_checked(model, feeds, options, least=None).proto
        wanted, got = (np.stack(infer(m, feeds, optimize=False)["y"]) for m in (model, made))
        error[correct] = float(np.abs((got - wanted).mean(axis=(0, 1, 3, 4))).max())
    assert error[True] < 0.35 * error[False], error


@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("elements", [1, 2, 20])
def test_softmax_of_small_numbers(elements: int, free: bool) -> None:
    """onnxruntime's integer Softmax gives 0 for what is large where its step is finer than 1/148 of a row's mean."""
    model = build(
        f"""(float[6, {"n" if free else elements}] x) => (float[6, {"m" if free else 2 * elements}] y) {{
            a = Transpose <perm = [0, 1]> (x)
            s = Softmax <axis = -1> (a)
            y = Concat <axis = 1> (s, s)
        }}"""
    )
    feeds = [{"x": f["x"] * f32(0.1)} for f in images(6, elements)]
    step = 1 / 148 if free else 1 / 255  # about one number in so many, each off by a step / sqrt(12)
    assert quantize_checked(model, feeds).worst > min(20 * np.log10(12**0.5 / elements / step) - 2, 42)


def test_logarithm_of_what_rounds_to_zero() -> None:
    """No infinities where everything is quantized: what stands before the logarithm stays float."""
    model = build("(float[4, 90] x) => (float[4, 90] y) { s = Sigmoid (x) y = Log (s) }")
    result = quantize_checked(model, [{"x": f["x"] * f32(3)} for f in images(4, 90)], least=None)
    assert "Log" in "".join(result.reasons.values()) and result.worst > 35


def test_mean_over_all_positions_of_next_to_nothing() -> None:
    """An AveragePool over everything is the same kernel of onnxruntime's as a GlobalAveragePool."""
    model = build(
        """(float[2, 4, 8, 8] x) => (float[2, 4, 1, 1] y) {
            m = ReduceMean <axes = [2, 3]> (x)
            d = Sub (x, m)
            y = AveragePool <kernel_shape = [8, 8]> (d)
        }"""
    )
    quantize_checked(model, images(2, 4, 8, 8), least=None)


def test_cubic_resize_between_convolutions() -> None:
    """onnxruntime has no cubic Resize with the channels last, and makes it one between integer convolutions."""
    model = build(
        """(float[1, 4, 6, 6] x) => (float[1, 4, 10, 10] y) {
            a = Conv (x, w)
            s = Sigmoid (a)
            m = Mul (a, s)
            r = Resize <mode = "cubic"> (m, , f)
            y = Conv <pads = [2, 2, 2, 2]> (r, w)
        }""",
        w=normal(4, 4, 3, 3),
        f=f32([1, 1, 2, 2]),
    )
    assert quantize_checked(model, images(1, 4, 6, 6)).worst > 20


@pytest.mark.parametrize(
    ("seed", "backend"), [(5_005_654, "onnxruntime"), (5_020_015, "tensorrt"), (5_020_385, "tensorrt")]
)
def test_seed(seed: int, backend: str) -> None:
    """A division of what is lost by what rounds to 0; a bias inside a loop; a sum that onnxruntime fuses wrongly."""
    assert judge(generate(seed), backend, "all").outcome == "quantized"


def test_cubic_resize_in_front_of_another_resize() -> None:
    """onnxruntime moves transpositions from behind as well."""
    model = build(
        """(float[1, 6, 8, 9] x) => (float[1, 3, 2, 7] y) {
            a = Conv (x, w)
            r = Resize <mode = "cubic"> (a, , f)
            n = Resize <mode = "nearest"> (r, , g)
            y = Conv (n, v)
        }""",
        w=normal(3, 6, 3, 1),
        v=normal(3, 3, 1, 3),
        f=f32([1, 1, 0.5, 2]),
        g=f32([1, 1, 0.7, 0.5]),
    )
    assert quantize_checked(model, images(1, 6, 8, 9)).worst > 20


def test_pieces_of_a_split_that_nothing_reads() -> None:
    """An integer Split gives all of its pieces, also those that the model leaves unread."""
    model = build(
        """(float[1, 4, 6, 6] x) => (float[1, 2, 4, 4] y, float[1, 2, 4, 4] z) {
            c = Conv (x, w)
            unread, y = Split <axis = 1> (c, halves)
            z, rest = Split <axis = 1> (c, halves)
        }""",
        w=normal(4, 4, 3, 3),
        halves=np.array([2, 2], np.int64),
    )
    for fmt in ("qoperator", "qdq"):
        assert quantize_checked(model, images(1, 4, 6, 6), Options(placement="all", format=fmt)).worst > 30


def test_pad_that_cuts_off() -> None:
    """RKNN gives what a Pad reads the scale of its output, which here is all zeros: the Pad stays float."""
    model = build(
        """(float[1, 8] x) => (float[1, 8] y, float[1, 16] z) {
            y = Pad (x, pads)
            z = Concat <axis = 1> (x, x)
        }""",
        pads=np.array([0, -8, 0, 8], np.int64),
    )
    feeds = images(1, 8)
    made = quantize(model, feeds, backend="rknn", options=ALL)
    assert "negative pads" in {kept.op: kept.reason for kept in made.plan.kept_float}["Pad"]
    result = infer(ir.to_proto(made.rendered()), feeds, optimize=False)
    assert sqnr([np.concatenate([f["x"], f["x"]], axis=1) for f in feeds], result["z"]) > 30


def test_a_float_model_that_onnxruntimes_optimizations_break() -> None:
    """It makes one of Pad and MaxPool, whose pads are then larger than the kernel, once the Softmax is not read.

    Up to onnxruntime 1.31; a later one runs the model, and nothing is to be said.
    """
    model = build(
        """(float[1, 1, 4, 5] x) => (float[1, 1, 6, 6] y, float[1, 2, 4, 5] z) {
            p = Pad (x, pads, zero)
            unread = Softmax (p)
            y = MaxPool <kernel_shape = [2, 2], pads = [1, 0, 0, 0]> (p)
            c = Conv (x, w)
            z = Neg (c)
        }""",
        pads=np.array([0, 0, 2, 2, 0, 0, 0, 0], np.int64),
        zero=np.float32(0),
        w=normal(2, 1, 1, 1),
    )
    said = [finding for finding in check(model) if finding.where == "onnxruntime"]
    made = quantize(model, images(1, 1, 4, 5), options=ALL)
    assert made.verification is not None
    if not has("onnxruntime", "1.32"):
        assert [finding.level for finding in said] == ["warning"]
        assert said[0].what.startswith("it runs without graph optimizations only; with them: ")
    else:
        assert said == []
    assert verified_sqnr(made) > 30


def test_a_mean_pool_that_stays_float_between_quantizers() -> None:
    """onnxruntime made a QLinearAveragePool of it, which divides by other counts beyond the padding."""
    model = build(
        """(float[1, 3, 8, 9] x) => (float[1, 3, 4, 9] y) {
            m = MaxPool <kernel_shape = [2, 1]> (x)
            a = AveragePool <ceil_mode = 1, count_include_pad = 1, kernel_shape = [2, 3], strides = [2, 1]> (m)
            y = Conv <group = 3, kernel_shape = [3, 1], pads = [1, 1, 1, 1]> (a, w)
        }""",
        w=normal(3, 1, 3, 1),
    )
    feeds = images(1, 3, 8, 9)
    quantize_checked(model, feeds, options=ALL)
    assert [kept.op for kept in quantize(model, feeds, options=ALL).plan.kept_float] == ["AveragePool"]
