"""LiteRT: models and samples of kinds that users have, and what they are told."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import pytest

import onnxq
from onnxq import Options
from onnxq.errors import ModelError, VerificationError
from tests.models import build, f32, feeds_for, normal

pytest.importorskip("ai_edge_litert")
ALL = Options(placement="all")


def test_outputs_that_are_constants_or_inputs(tmp_path: Path) -> None:
    model = build(
        "(float[1, 8] x) => (float[1, 8] y, float[8, 8] w, float[1, 8] x) { y = Gemm (x, w) }", w=normal(8, 8)
    )
    target = tmp_path / "net.onnx"
    onnxq.quantize(model, feeds_for(model), backend="litert", output=target, options=ALL)
    found = onnxq.verify(target, feeds_for(model, seed=3), backend="litert")
    assert {name: errors.sqnr for name, errors in found.outputs.items()} == dict.fromkeys("ywx", np.inf)


def test_integers_of_the_model_are_no_codes_of_floats(tmp_path: Path) -> None:
    model = build(
        "(uint8[1, 3, 8, 8] x) => (float[1, 4, 8, 8] y) { f = DequantizeLinear (x, s, z) \n y = Conv (f, w) }",
        w=normal(4, 3, 1, 1),
        s=f32(1 / 255),
        z=np.uint8(0),
    )
    feeds = [{"x": np.random.default_rng(k).integers(0, 256, (1, 3, 8, 8)).astype(np.uint8)} for k in range(4)]
    target, options = tmp_path / "net.onnx", Options(format="tflite-int8")
    onnxq.quantize(model, feeds, backend="litert", output=target, options=options)
    assert onnxq.verify(target, feeds, backend="litert").outputs["y"].sqnr > 60


def test_layers_of_a_model_whose_last_layer_is_float(tmp_path: Path) -> None:
    """What it reads has quantizers all the same, as onnxruntime's target and others leave them."""
    model = build(
        "(float[1, 8] x) => (float[1, 4] y) { a = Gemm (x, w, b) \n r = Relu (a) \n y = Gemm (r, v, c) }",
        w=normal(8, 8),
        b=normal(8, seed=1),
        v=normal(8, 4, seed=2),
        c=normal(4, seed=3),
    )
    given = tmp_path / "given.onnx"
    onnxq.quantize(model, feeds_for(model), output=given, options=ALL)
    target = tmp_path / "net.onnx"
    made = onnxq.deploy(given, backend="litert", output=target)
    assert [*made.plan.quantized.values()] == ["Gemm"]
    found = onnxq.verify(target, feeds_for(model, seed=3), backend="litert", layers=True)
    assert found.layers_missing is None and max(layer.steps for layer in found.layers) <= 1
    assert len(found.integer) == len(found.floating) == 1


def two_rows(extra: str) -> onnx.ModelProto:
    return build(
        f"(float[N, 4] x, float[4] v) => (float[N, 4] y{extra}) {{ a = Gemm (x, w) \n y = Add (a, v) \n "
        "z = ReduceMax <keepdims = 0> (y) }",
        w=normal(4, 4),
    )


def test_samples_of_several_rows_of_some_inputs(tmp_path: Path) -> None:
    model, target = two_rows(""), tmp_path / "net.onnx"
    feeds = feeds_for(model, N=3)
    onnxq.quantize(model, feeds, backend="litert", output=target, options=ALL)
    assert onnxq.verify(target, feeds, backend="litert").lsb["y"] <= 1


def test_samples_that_do_not_fit_are_named_and_not_the_model(tmp_path: Path) -> None:
    model, target = two_rows(", float z"), tmp_path / "net.onnx"
    onnxq.quantize(model, feeds_for(model, N=3), backend="litert", output=target, options=ALL)
    with pytest.raises(VerificationError, match=r"does not take the samples: .* output 'z' has no rows") as caught:
        onnxq.verify(target, feeds_for(model, N=3), backend="litert")
    assert caught.value.hint is not None and "exclude" not in caught.value.hint


def test_all_that_is_in_the_way_is_said_at_once() -> None:
    model = build(
        """(float[1, A, 8] x, float[2, B] state) => (float[C, D, E] y, int64[3, F] i) {
            [sizes] s = Shape (x)
            [filled] z = ConstantOfShape (s)
            [picks] i = NonZero (x)
            y = Identity (z)
        }"""
    )
    model.graph.input[1].name = "the state"
    (found,) = [each for each in onnxq.check(model, backend="litert") if "TensorFlow Lite" in each.what]
    said = f"{found.what} {found.hint}"
    assert "input 'x': its sizes [1,A,8]" in said and "node 'picks' (NonZero)" in said
    assert "filled" not in said, "it is a constant once the sizes are fixed"
    assert "--shape x=1xSIZE1x8" in said
    assert "--shape 'the state=2xSIZE1'" in said and "Cut the model there" in said


def test_the_file_itself_in_place_of_the_model_beside_it(tmp_path: Path) -> None:
    model = build("(float[1, 8] x) => (float[1, 8] y) { y = Gemm (x, w) }", w=normal(8, 8))
    onnxq.quantize(model, feeds_for(model), backend="litert", output=tmp_path / "net.onnx")
    with pytest.raises(ModelError) as caught:
        onnxq.deploy(tmp_path / "net.tflite", backend="litert")
    assert f"'{tmp_path / 'net.onnx'}'" in str(caught.value) and "tf2onnx" not in str(caught.value)


@pytest.mark.parametrize("layer", ["Conv", "Gemm"])
def test_a_result_far_smaller_than_its_products_has_a_scale_that_the_kernel_takes(layer: str, tmp_path: Path) -> None:
    """XNNPACK takes no file in which the scale of a layer's result is less than a 256th of that of its products."""
    model = build(
        f"""(float[1, 2, 1, 1] x) => (float[1, 2, 1, 1] y) {{
            flat = Flatten (x)
            a = {layer} ({"x" if layer == "Conv" else "flat"}, w)
            r = Relu (a)
            s = Reshape (r, shape)
            y = Conv (s, v)
        }}""",
        w=np.array([[1, -1], [-1, 1]], np.float32).reshape(2, 2, *([1, 1] if layer == "Conv" else [])),
        v=normal(2, 2, 1, 1),
        shape=np.array([1, 2, 1, 1]),
    )
    feeds = [{"x": np.array([255 * k, 255 * k + 0.001], np.float32).reshape(1, 2, 1, 1)} for k in range(8)]
    target = tmp_path / "net.onnx"
    onnxq.quantize(model, feeds, backend="litert", output=target, options=ALL)
    found = onnxq.verify(target, feeds, backend="litert", layers=True)
    assert max(layer.steps for layer in found.layers) <= 1 and found.layers_missing is None


@pytest.mark.parametrize("function", ["Relu (a)", "Clip (a, zero, six)", "Clip (a, low, six)"])
def test_no_kernel_clips_that_is_slow_in_integers(function: str, tmp_path: Path) -> None:
    """The RELUs of int8 take 7 ns an element, MAXIMUM and MINIMUM .02; symmetric grids do not end where a Relu does."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    model = build(
        f"(float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) {{ a = Conv (x, w) \n r = {function} \n y = Conv (r, v) }}",
        w=normal(4, 4, 1, 1),
        v=normal(4, 4, 1, 1, seed=1),
        zero=f32(0),
        low=f32(-0.1),
        six=f32(6),
    )
    target = tmp_path / "net.onnx"
    options = Options(placement="all", symmetric=True)
    onnxq.quantize(model, feeds_for(model), backend="litert", output=target, options=options)
    found = onnxq.verify(target, feeds_for(model, seed=3), backend="litert", layers=True)
    assert max(layer.steps for layer in found.layers) <= 1
    plain = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    interpreter = Interpreter(str(target.with_suffix(".tflite")), experimental_op_resolver_type=plain)
    kinds = [operator["op_name"] for operator in interpreter._get_ops_details()]
    assert [kind for kind in kinds if "RELU" in kind or kind in ("MAXIMUM", "MINIMUM")] == ["MAXIMUM"]


@pytest.mark.parametrize(("steepest", "quantized"), [(1.0, True), (1.5, False)])
def test_slopes_of_which_there_are_fast_kernels_are_in_integers(steepest: float, *, quantized: bool) -> None:
    model = build(
        """(float[1, 64, 32, 32] x) => (float[1, 64, 32, 32] y) {
            a = Conv (x, w)
            p = PRelu (a, s)
            y = Conv (p, w)
        }""",
        w=normal(64, 64, 1, 1),
        s=np.linspace(0.1, steepest, 64, dtype=np.float32).reshape(64, 1, 1),
    )
    assert ("PRelu" in onnxq.plan(model, backend="litert").quantized.values()) == quantized


def test_integers_that_stand_for_two_sets_of_numbers_are_refused() -> None:
    model = build(
        "(int8[1, 3, 4, 4] x) => (float[1, 3, 4, 4] y, float[1, 3, 4, 4] z) { y = DequantizeLinear (x, a) \n "
        "z = DequantizeLinear (x, b) }",
        a=f32(0.1),
        b=f32(0.2),
    )
    found = [each.what for each in onnxq.check(model, backend="litert") if "TensorFlow Lite" in each.what]
    assert found and "it takes integers for others" in found[0]


@pytest.mark.parametrize(("placement", "said"), [("auto", True), ("all", False)])
def test_all_is_not_advised_where_it_was_asked_for(placement: Literal["auto", "all"], *, said: bool) -> None:
    model = build(
        "(float[1, 8, 16] x) => (float[1, 8, 16] y) { t = MatMul (x, w) \n y = LayerNormalization (t, s, b) }",
        w=normal(16, 16),
        s=normal(16),
        b=normal(16, seed=1),
    )
    options = Options(placement=placement, format="tflite-int8")
    notes = onnxq.quantize(model, feeds_for(model), backend="litert", options=options).notes
    (note,) = [note for note in notes if "operators that stay float: " in note]
    assert ("--placement all" in note) == said


def test_a_file_that_is_not_there_or_another_models(tmp_path: Path) -> None:
    target = tmp_path / "net.onnx"
    for name in ("x", "z"):
        model = build(f"(float[1, 8] {name}) => (float[1, 8] y) {{ y = Gemm ({name}, w) }}", w=normal(8, 8))
        onnxq.quantize(model, feeds_for(model), backend="litert", output=target, options=Options(format="qdq"))
        with pytest.raises(VerificationError, match=r"LiteRT runs 'net\.tflite' beside it, which is not there"):
            onnxq.verify(target, feeds_for(model), backend="litert")
        assert onnxq.verify(target, feeds_for(model), backend="litert", simulation=True).simulated
        onnxq.quantize(model, feeds_for(model), backend="litert", output=tmp_path / f"{name}.onnx")
    (tmp_path / "x.tflite").rename(tmp_path / "z.tflite")
    with pytest.raises(VerificationError, match="its inputs are x, and the model beside it has z"):
        onnxq.verify(tmp_path / "z.onnx", feeds_for(model), backend="litert")


def test_a_microcontroller_has_a_hard_swish_as_one_operator(tmp_path: Path) -> None:
    """On an Ethos-U55 it is a third of the time of sums and products, by Vela's estimate of a MobileNetV2 with it."""
    model = build(
        "(float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) { a = Conv (x, w) \n h = HardSwish (a) \n y = Conv (h, w) }",
        w=normal(4, 4, 1, 1),
    )
    target = tmp_path / "net.onnx"
    for form, wanted in (("tflite-int8", ["CONV_2D", "HARD_SWISH", "CONV_2D"]), ("tflite", None)):
        options = Options(placement="all", format=form)
        onnxq.quantize(model, feeds_for(model), backend="litert", output=target, options=options)
        found = onnxq.verify(target, feeds_for(model, seed=3), backend="litert")
        assert max(found.lsb.values()) <= 2
        kinds = [line.split()[0] for line in found.integer if "TRANSPOSE" not in line]
        assert kinds == wanted if wanted else "HARD_SWISH" not in kinds


def test_axes_of_one_element_move_no_channels(tmp_path: Path) -> None:
    """As a net chooses between kernels: two branches on an axis of their own, and their sum."""
    model = build(
        """(float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) {
            a = Conv <pads = [1, 1, 1, 1]> (x, v)
            b = Conv (x, w)
            c = Unsqueeze (a, at)
            d = Unsqueeze (b, at)
            e = Concat <axis = 1> (c, d)
            s = ReduceSum <keepdims = 0> (e, at)
            y = Conv (s, w)
        }""",
        v=normal(4, 4, 3, 3),
        w=normal(4, 4, 1, 1),
        at=np.array([1]),
    )
    target = tmp_path / "net.onnx"
    onnxq.quantize(model, feeds_for(model), backend="litert", output=target, options=Options(placement="all"))
    from ai_edge_litert.interpreter import Interpreter

    operators = [each["op_name"] for each in Interpreter(str(target.with_suffix(".tflite")))._get_ops_details()]
    assert operators.count("TRANSPOSE") == 2, "of the input and of the output"
    found = onnxq.verify(target, feeds_for(model, seed=3), backend="litert")
    assert max(found.lsb.values()) <= 2


@pytest.mark.parametrize("kind", ["int64", "int32"])
def test_a_table_of_embeddings_is_integers_with_a_scale_for_each_row(kind: str, tmp_path: Path) -> None:
    model = build(
        f"""({kind}[1, 12] x) => (float[1, 12, 64] y) {{
            e = Gather (table, x)
            y = MatMul (e, w)
        }}""",
        table=normal(500, 64, scale=1.0) * f32(np.random.default_rng(0).uniform(0.01, 1.0, (500, 1))),
        w=normal(64, 64),
    )
    feeds = [{"x": np.random.default_rng(k).integers(0, 500, (1, 12)).astype(kind)} for k in range(8)]
    target = tmp_path / "net.onnx"
    made = onnxq.quantize(model, feeds, backend="litert", output=target)
    assert [*made.plan.stored.values()] == ["Gather"] and made.verification is not None
    assert target.with_suffix(".tflite").stat().st_size < 500 * 64 * 2
    found = onnxq.verify(target, feeds, backend="litert")
    assert any("EMBEDDING_LOOKUP" in each for each in found.floating) and found.outputs["y"].sqnr > 60
