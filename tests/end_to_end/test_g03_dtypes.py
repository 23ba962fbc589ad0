"""Group 3: element types, of the model and of the integers asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxq import OnnxqError, OptionError, Options, quantize
from onnxq.cli import main
from tests.cases import g03
from tests.contract import ALL, infer, quantize_checked
from tests.models import build, f32, feeds_for, images, normal


@pytest.mark.parametrize("opset", [13, 17, 19, 21])
def test_fp16_conv(opset: int) -> None:
    model, feeds = g03.fp16_conv(opset)
    result = quantize_checked(model, feeds, least=28)
    assert "Conv" in result.quantized.plan.quantized.values()


def test_fp16_matmul() -> None:
    model, feeds = g03.fp16_matmul()
    quantize_checked(model, feeds, least=28)


def test_fp16_inside_a_float_model() -> None:
    model, feeds = g03.fp16_inside_a_float_model()
    quantize_checked(model, feeds, least=28)


def test_fp16_input_and_float_input_side_by_side() -> None:
    model = build(
        """(float16[N, 16] x, float[N, 8] z) => (float[N, 8] y) {
            m = MatMul (x, w)
            c = Cast <to = 1> (m)
            y = Add (c, z)
        }""",
        w=g03.f16(normal(16, 8)),
    )
    quantize_checked(model, feeds_for(model, N=4), least=28)


def test_bfloat16_is_quantized_or_refused() -> None:
    w = normal(16, 8).astype(ml_dtypes.bfloat16)
    model = build(
        """(float[N, 16] x) => (float[N, 8] y) {
            h = Cast <to = 16> (x)
            m = MatMul (h, w)
            y = Cast <to = 1> (m)
        }"""
    )
    model.graph.initializer.append(
        helper.make_tensor("w", TensorProto.BFLOAT16, w.shape, w.view(np.uint16).tobytes(), raw=True)
    )
    quantized = quantize(model, feeds_for(model, N=4), options=ALL)
    assert list(quantized.plan.quantized.values()) == ["MatMul"]


def test_double_matmul() -> None:
    model, feeds = g03.double_matmul()
    result = quantize_checked(model, feeds, least=None)
    assert "float64" in result.reasons["m"]
    assert result.sqnr["y"] > 200, "left in double"


def test_double_between_float_layers() -> None:
    model, feeds = g03.double_between_float_layers()
    result = quantize_checked(model, feeds)
    assert list(result.quantized.plan.quantized.values()) == ["MatMul", "MatMul"]


@pytest.mark.parametrize("bits", ["fp8", "float8e4m3fn", 1, 17, 0, -8, 8.0, True])
def test_widths_that_no_target_has_are_refused(bits: Any) -> None:
    with pytest.raises(OptionError, match=r"weight_bits.*not a number of bits from 2 to 16"):
        Options(weight_bits=bits)
    with pytest.raises(OptionError, match=r"act_bits.*not a number of bits from 2 to 16"):
        Options(act_bits=bits)


def test_fp8_on_the_command_line_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quantize", "m.onnx", "--data", "d.npz", "-o", "q.onnx", "--weight-bits", "fp8"]) == 2
    assert "fp8" in capsys.readouterr().err


def test_fp8_weights_in_the_model_are_left_alone() -> None:
    w = normal(16, 8)
    model = build(
        """(float[N, 16] x) => (float[N, 8] y) {
            d = DequantizeLinear (w, s)
            [m] h = MatMul (x, d)
            [n] y = MatMul (h, v)
        }""",
        opset=19,
        ir_version=9,
        s=f32(0.01),
        v=normal(8, 8, seed=3),
    )
    stored = (w / 0.01).astype(ml_dtypes.float8_e4m3fn)
    model.graph.initializer.append(
        helper.make_tensor("w", TensorProto.FLOAT8E4M3FN, w.shape, stored.view(np.uint8).tobytes(), raw=True)
    )
    result = quantize_checked(model, feeds_for(model, N=4))
    assert "already quantized" in result.reasons["m"]
    assert list(result.quantized.plan.quantized) == ["n"]


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (1, 1), (16, 33)])
def test_int4_weights_of_odd_size(tmp_path: Path, shape: tuple[int, int]) -> None:
    model, feeds = g03.int4_weights_of_odd_size(shape)
    path = tmp_path / "q.onnx"
    options = Options(placement="all", weight_bits=4, weight_symmetric=True)
    result = quantize_checked(model, feeds, options, least=10, output=path)
    stored = next(t for t in onnx.load(path).graph.initializer if t.data_type == TensorProto.INT4)
    count = shape[0] * shape[1]
    assert len(stored.raw_data) == (count + 1) // 2
    numbers = numpy_helper.to_array(stored).astype(np.int8).reshape(-1)
    padded = np.append(numbers, [0] * (count % 2)).astype(np.uint8) & 15
    packed = padded[0::2] | (padded[1::2] << 4)  # the first element lies in the low nibble
    assert packed.tobytes() == stored.raw_data
    site = next(s for s in result.quantized.plan.sites if s.role == "weight")
    qp = result.quantized.qparams[site.name]
    w = numpy_helper.to_array(model.graph.initializer[0])
    expected = np.clip(np.rint(w / qp.scale), -7, 7)
    np.testing.assert_array_equal(numbers.reshape(shape), expected)


@pytest.mark.parametrize("k", [33, 20])
def test_int4_blocks_that_do_not_divide_the_axis(k: int) -> None:
    """A model that stores blocks of 32 already: 33 columns (the last block is short), 20 (one short block)."""
    model, feeds = g03.int4_blocks_that_do_not_divide(k)
    result = quantize_checked(model, feeds)
    assert "already quantized" in result.reasons["m"]
    before = next(t for t in model.graph.initializer if t.name == "w")
    after = next(t for t in result.proto.graph.initializer if t.name == "w")
    np.testing.assert_array_equal(numpy_helper.to_array(after), numpy_helper.to_array(before))


@pytest.mark.parametrize(
    ("weight_bits", "act_bits"), [(8, 8), (4, 8), (8, 16), (16, 16), (4, 16), (2, 8), (6, 8), (8, 7)]
)
def test_every_width_gives_a_valid_result(weight_bits: int, act_bits: int) -> None:
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) {
            c = Conv (x, w, b)
            y = Relu (c)
        }""",
        w=normal(4, 3, 3, 3),
        b=normal(4, seed=1),
    )
    options = Options(placement="all", weight_bits=weight_bits, act_bits=act_bits)
    least = 6.0 * min(weight_bits, act_bits) - 14
    quantize_checked(model, images(1, 3, 8, 8), options, least=least)


@pytest.mark.parametrize("opset", [10, 12, 17])
def test_int16_raises_the_opset(opset: int) -> None:
    model, feeds = g03.int16_activations_opset17(opset)
    result = quantize_checked(model, feeds, Options(placement="all", act_bits=16), least=35)
    assert next(i.version for i in result.proto.opset_import if not i.domain) == 21


def test_integer_model_has_nothing_to_quantize() -> None:
    model = build("(int64[N, 4] x) => (int64[N, 4] y) { y = Add (x, x) }")
    result = quantize_checked(model, [{"x": np.arange(8).reshape(2, 4)}], least=None)
    assert result.ops == ["Add"]
    assert not result.quantized.plan.sites


def test_an_embedding_takes_integers_and_strings_pass_by() -> None:
    model = build(
        """(int64[N] ids, string[N] text) => (float[N, 6] y, string[N] same) {
            e = Gather (table, ids)
            y = MatMul (e, w)
            same = Identity (text)
        }""",
        table=normal(10, 8, scale=1),
        w=normal(8, 6),
    )
    feeds = [{"ids": np.arange(10), "text": np.array([f"t{i}" for i in range(10)], object)}]
    result = quantize_checked(model, feeds)
    assert infer(result.proto, feeds, optimize=True)["same"][0].tolist() == feeds[0]["text"].tolist()


def test_complex_or_boolean_weights_do_not_crash() -> None:
    model = build(
        """(float[N, 4] x, bool[N, 4] mask) => (float[N, 4] y) {
            m = MatMul (x, w)
            y = Where (mask, m, zero)
        }""",
        w=normal(4, 4),
        zero=f32(0),
    )
    rng = np.random.default_rng(0)
    feeds = [{"x": normal(3, 4, seed=i), "mask": rng.random((3, 4)) > 0.5} for i in range(4)]
    quantize_checked(model, feeds)


def test_errors_are_typed_for_a_wrong_element_type() -> None:
    model = build("(float[N, 4] x) => (float[N, 4] y) { y = MatMul (x, w) }", w=normal(4, 4).astype(np.float64))
    with pytest.raises(OnnxqError, match=r"MatMul|'y'|type"):
        quantize(model, feeds_for(model, N=2))
