"""Faults that random graphs and damaged files showed, each in its smallest form."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from onnxq import ModelError, OptionError, Options, calibrate, plan, quantize
from tests.contract import ALL, quantize_checked
from tests.models import build, f32, images, normal, renamed


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
    from tests.contract import infer

    error = {}
    for correct in (True, False):
        options = Options(placement="all", weight_bits=4, bias_correction=correct)
        made = quantize_checked(model, feeds, options, least=None).proto
        wanted, got = (np.stack(infer(m, feeds, optimize=False)["y"]) for m in (model, made))
        error[correct] = float(np.abs((got - wanted).mean(axis=(0, 1, 3, 4))).max())
    assert error[True] < 0.35 * error[False], error


# -- damaged files


def saved(model: onnx.ModelProto, path: Path) -> Path:
    path.write_bytes(model.SerializeToString())
    return path


def test_constant_with_too_many_bytes(tmp_path: Path) -> None:
    model = build("(float[1, 4, 8, 8] x) => (float[1, 16, 6, 6] y) { y = Conv (x, w) }", w=normal(16, 4, 3, 3))
    model.graph.initializer[0].raw_data += b"abc"
    with pytest.raises(ModelError, match=r"tensor 'w'.*2304 bytes, it has 2307"):
        quantize(saved(model, tmp_path / "m.onnx"), images(1, 4, 8, 8))


def test_external_tensor_without_a_type(tmp_path: Path) -> None:
    model = build("(float[1, 4, 8, 8] x) => (float[1, 4, 6, 6] y) { y = Conv (x, w) }")
    tensor = TensorProto(name="w", dims=[4, 4, 3, 3], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="w.bin")
    model.graph.initializer.append(tensor)
    (tmp_path / "w.bin").write_bytes(bytes(576))
    with pytest.raises(ModelError, match="tensor 'w'"):
        plan(saved(model, tmp_path / "m.onnx"))


def test_name_that_is_no_text(tmp_path: Path) -> None:
    model = build("(float[1, 4] x) => (float[1, 4] y) { [label] y = Relu (x) }")
    broken = model.SerializeToString().replace(b"label", b"l\xffbel")
    (tmp_path / "m.onnx").write_bytes(broken)
    with pytest.raises(ModelError, match="no UTF-8 text"):
        plan(tmp_path / "m.onnx")


def test_attribute_without_a_type() -> None:
    model = build("(float[1, 4] x) => (float[1, 8] y) { y = Concat <axis = 1> (x, x) }")
    model.graph.node[0].attribute[0].ClearField("type")
    with pytest.raises(ModelError, match=r"'axis'.*no type"):
        plan(model)


def test_weights_that_overflow_a_mean() -> None:
    """The mean of a channel is beyond float32; the run ends with a result or an error of onnxq's, not a warning."""
    model = build(
        "(float[1, 4, 8, 8] x) => (float[1, 4, 6, 6] y) { a = Mul (x, f) y = Conv (a, w, b) }",
        f=f32(2e37),
        w=normal(4, 4, 3, 3, scale=1e-36),
        b=normal(4),
    )
    quantize(model, images(1, 4, 8, 8), options=ALL)


@pytest.mark.parametrize("damage", ["cut", "changed", "text"])
def test_broken_state_of_training(tmp_path: Path, damage: str) -> None:
    pytest.importorskip("torch")
    from onnxq import finetune

    model = build(
        "(float[1, 4, 6, 6] x) => (float[1, 4, 4, 4] y) { y = Conv (x, w, b) }", w=normal(4, 4, 3, 3), b=normal(4)
    )
    feeds, state = images(1, 4, 6, 6, samples=4), tmp_path / "state.npz"
    made = quantize(model, feeds, options=ALL)
    finetune(made, feeds, teacher=model, steps=2, batch=2, resume=state)
    content = bytearray(state.read_bytes())
    content = {"cut": content[:-100], "changed": content[:150] + b"abc" + content[153:], "text": bytearray(b"no")}[
        damage
    ]
    state.write_bytes(bytes(content))
    with pytest.raises(OptionError, match="no state of a training"):
        finetune(made, feeds, teacher=model, steps=2, batch=2, resume=state)
