"""Group 13: models that are quantized already, in whole or in part."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper

from onnxq import ExecutionError, Options, quantize
from tests.cases import g13
from tests.contract import ALL, GIVEN, infer, quantize_checked
from tests.models import build, constants_of, f32, images, loads, normal


def test_qlinearconv_inside() -> None:
    result = quantize_checked(*g13.qlinearconv_inside(), least=None)
    assert "QLinearConv" in result.ops
    constants = constants_of(result.proto)
    np.testing.assert_array_equal(constants["w"], g13.int8(4, 3, 3, 3))
    assert "old" in result.reasons or "old" in result.notes, "it must be listed"
    assert "new" in result.quantized.plan.quantized or result.reasons["new"]
    assert result.worst > 20


@pytest.mark.parametrize("op", ["ConvInteger", "MatMulInteger"])
def test_integer_operators_inside(op: str) -> None:
    conv = op == "ConvInteger"
    x, out, w = ("1, 3, 8, 8", "1, 4, 6, 6", g13.int8(4, 3, 3, 3)) if conv else ("4, 8", "4, 8", g13.int8(8, 8))
    model = build(
        f"""(float[{x}] x) => (float[{out}] y) {{
            q, s, z = DynamicQuantizeLinear (x)
            [old] i = {op} (q, w, z)
            f = Cast <to = 1> (i)
            k = Mul (s, sw)
            d = Mul (f, k)
            [new] y = {"Conv" if conv else "MatMul"} (d, v)
        }}""",
        w=w,
        sw=f32(0.005),
        v=normal(4, 4, 1, 1) if conv else normal(8, 8),
    )
    if not loads(model):
        pytest.skip(f"this onnxruntime has no {op} of these types")
    feeds = images(*map(int, x.split(",")))
    result = quantize_checked(model, feeds)
    assert {op, "DynamicQuantizeLinear"} <= set(result.ops)
    assert "new" in result.quantized.plan.quantized
    assert "old" in result.reasons or "old" in result.notes, "it must be listed"


@pytest.mark.parametrize("form", ["absent", "empty"])
def test_quantizers_without_zero_point(form: str) -> None:
    """It is uint8 0 then."""
    result = quantize_checked(*g13.quantizers_without_zero_point(form), least=None)
    assert result.worst > 25
    assert "c" in result.quantized.plan.quantized or result.reasons["c"]


def test_matmulnbits_is_left_alone() -> None:
    model, feeds = g13.matmulnbits()
    result = quantize_checked(model, feeds)
    assert "already quantized" in result.reasons["old"]
    assert list(result.quantized.plan.quantized) == ["new"]
    before, after = (next(t for t in m.graph.initializer if t.name == "packed") for m in (model, result.proto))
    np.testing.assert_array_equal(numpy_helper.to_array(after), numpy_helper.to_array(before))


def test_microsoft_quantizers() -> None:
    result = quantize_checked(*g13.microsoft_quantizers())
    assert [n.op_type for n in result.proto.graph.node if n.domain == "com.microsoft"] == [
        "QuantizeLinear",
        "DequantizeLinear",
    ]
    assert "already quantized" in result.reasons["old"]
    assert "new" in result.quantized.plan.quantized


def test_qonnx_quant_is_not_quantized_again() -> None:
    """onnxruntime does not know the operator: it is written as a function that onnxruntime runs."""
    model, feeds = g13.qonnx_quant()
    result = quantize(model, feeds, options=ALL)
    (kept,) = (kept for kept in result.plan.kept_float if kept.op == "Conv")
    assert "already quantized" in kept.reason


def test_qonnx_trunc_is_named() -> None:
    model, feeds = g13.qonnx_quant()
    next(node for node in model.graph.node if node.op_type == "Quant").op_type = "Trunc"
    with pytest.raises(ExecutionError, match=r"qonnx\.custom_op\.general.*Trunc"):
        quantize(model, feeds, options=ALL)


@pytest.mark.parametrize("form", ["qdq", "fake-quantize"])
@pytest.mark.parametrize("act_bits", [8, 6, 16])
def test_own_results_are_not_quantized_again(form: str, act_bits: int) -> None:
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 4, 4] y) {
            c = Conv (x, w, b)
            r = Relu (c)
            y = Conv (r, v)
        }""",
        w=normal(4, 3, 3, 3),
        b=normal(4, seed=1),
        v=normal(4, 4, 3, 3, seed=2),
    )
    feeds = images(1, 3, 8, 8)
    once = quantize_checked(model, feeds, Options(placement="all", format=form, act_bits=act_bits))
    twice = quantize_checked(once.proto, feeds, least=None)
    wanted, got = (infer(m, feeds, optimize=False)["y"] for m in (once.proto, twice.proto))
    step = max(float(q.scale.max()) for n, q in once.quantized.qparams.items() if n == "y")
    for a, b in zip(wanted, got, strict=True):
        assert np.abs(a - b).max() <= 1.01 * step
        assert (a != b).mean() < 0.02


def test_quantized_weights_only() -> None:
    """Weights behind DequantizeLinear, activations float, as weight-only tools leave it."""
    model, feeds = g13.quantized_weights_only()
    quantize_checked(model, feeds)


def test_half_of_the_model_is_quantized() -> None:
    """The integer half passes through bit by bit; the float half is quantized."""
    model, feeds = g13.half_quantized()
    result = quantize_checked(model, feeds, least=None, agree=GIVEN)
    wanted, got = (infer(m, feeds, optimize=False)["h"] for m in (model, result.proto))
    for a, b in zip(wanted, got, strict=True):
        np.testing.assert_array_equal(a, b)
    assert result.sqnr["y"] > min(20, GIVEN)


def test_a_quantized_tensor_is_a_graph_output() -> None:
    model, feeds = g13.quantized_output()
    assert model.graph.output[0].type.tensor_type.elem_type == TensorProto.UINT8
    result = quantize_checked(model, feeds, least=None)
    feeds = feeds
    wanted, got = (infer(m, feeds, optimize=True)["y"] for m in (model, result.proto))
    assert max(np.abs(a.astype(int) - b.astype(int)).max() for a, b in zip(wanted, got, strict=True)) <= 3


def test_dequantized_input() -> None:
    """An integer graph input behind a DequantizeLinear."""
    result = quantize_checked(*g13.dequantized_input(), least=None)
    assert result.worst > 20
