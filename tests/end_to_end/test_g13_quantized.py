"""Group 13: models that are quantized already, in whole or in part."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper

from onnxq import Options, quantize
from tests.contract import ALL, infer, quantize_checked
from tests.models import build, f32, feeds_for, images, loads, normal


def int8(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(-127, 128, shape).astype(np.int8)


def test_qlinearconv_inside() -> None:
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 4, 4] y) {
            q = QuantizeLinear (x, sx, zx)
            [old] c = QLinearConv (q, sx, zx, w, sw, zw, sy, zx)
            d = DequantizeLinear (c, sy, zx)
            [new] y = Conv (d, v)
        }""",
        sx=f32(0.03),
        zx=np.uint8(128),
        w=int8(4, 3, 3, 3),
        sw=f32(0.005),
        zw=np.int8(0),
        sy=f32(0.05),
        v=normal(4, 4, 3, 3),
    )
    result = quantize_checked(model, images(1, 3, 8, 8), least=None)
    assert "QLinearConv" in result.ops
    constants = {t.name: numpy_helper.to_array(t) for t in result.proto.graph.initializer}
    np.testing.assert_array_equal(constants["w"], int8(4, 3, 3, 3))
    assert "old" in result.reasons or "old" in result.notes, "it must be listed"
    assert "new" in result.quantized.plan.quantized or result.reasons["new"]
    assert result.worst > 20


@pytest.mark.parametrize("op", ["ConvInteger", "MatMulInteger"])
def test_integer_operators_inside(op: str) -> None:
    conv = op == "ConvInteger"
    x, out, w = ("1, 3, 8, 8", "1, 4, 6, 6", int8(4, 3, 3, 3)) if conv else ("4, 8", "4, 8", int8(8, 8))
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
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) {
            r = Relu (x)
            q = QuantizeLinear (r, s)
            d = DequantizeLinear (q, s)
            [c] y = Conv (d, w)
        }""",
        s=f32(0.015),
        w=normal(4, 3, 3, 3),
    )
    if form == "empty":
        for node in model.graph.node:
            if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
                node.input.append("")
    result = quantize_checked(model, images(1, 3, 8, 8), least=None)
    assert result.worst > 25
    assert "c" in result.quantized.plan.quantized or result.reasons["c"]


def test_matmulnbits_is_left_alone() -> None:
    model = build(
        """(float[4, 32] x) => (float[4, 8] y) {
            [old] h = com.microsoft.MatMulNBits <K = 32, N = 16, bits = 4, block_size = 16> (x, packed, scales)
            [new] y = MatMul (h, w)
        }""",
        domains={"com.microsoft": 1},
        packed=np.random.default_rng(0).integers(0, 256, (16, 2, 8)).astype(np.uint8),
        scales=f32(np.random.default_rng(1).random(32) * 0.1),
        w=normal(16, 8),
    )
    result = quantize_checked(model, images(4, 32))
    assert "already quantized" in result.reasons["old"]
    assert list(result.quantized.plan.quantized) == ["new"]
    before, after = (next(t for t in m.graph.initializer if t.name == "packed") for m in (model, result.proto))
    np.testing.assert_array_equal(numpy_helper.to_array(after), numpy_helper.to_array(before))


def test_microsoft_quantizers() -> None:
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 4, 4] y) {
            q = com.microsoft.QuantizeLinear (x, s, z)
            d = com.microsoft.DequantizeLinear (q, s, z)
            [old] h = Conv (d, w)
            [new] y = Conv (h, v)
        }""",
        domains={"com.microsoft": 1},
        s=f32(0.0001),
        z=np.uint16(32768),
        w=normal(4, 3, 3, 3),
        v=normal(4, 4, 3, 3, seed=1),
    )
    result = quantize_checked(model, images(1, 3, 8, 8))
    assert [n.op_type for n in result.proto.graph.node if n.domain == "com.microsoft"] == [
        "QuantizeLinear",
        "DequantizeLinear",
    ]
    assert "already quantized" in result.reasons["old"]
    assert "new" in result.quantized.plan.quantized


def test_qonnx_quant_is_named() -> None:
    """onnxruntime does not know the operator: recognised, or an error that names it."""
    from onnxq import ExecutionError

    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) {
            [odd] h = qonnx.custom_op.general.Quant <narrow = 1, signed = 1> (x, s, z, bits)
            y = Conv (h, w)
        }""",
        domains={"qonnx.custom_op.general": 1},
        s=f32(0.1),
        z=f32(0),
        bits=f32(8),
        w=normal(4, 3, 3, 3),
    )
    with pytest.raises(ExecutionError, match=r"qonnx\.custom_op\.general.*Quant"):
        quantize(model, images(1, 3, 8, 8), options=ALL)


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
    model = build(
        """(float[4, 8] x) => (float[4, 8] y) {
            d = DequantizeLinear <axis = 1> (w, s)
            [a] h = MatMul (x, d)
            [b] y = MatMul (h, v)
        }""",
        w=int8(8, 8),
        s=f32(np.linspace(0.001, 0.01, 8)),
        v=normal(8, 8),
    )
    quantize_checked(model, feeds_for(model))


def test_half_of_the_model_is_quantized() -> None:
    """The integer half passes through bit by bit; the float half is quantized."""
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] h, float[1, 4, 4, 4] y) {
            q = QuantizeLinear (x, sx, zx)
            dx = DequantizeLinear (q, sx, zx)
            dw = DequantizeLinear <axis = 0> (w, sw, zw)
            c = Conv (dx, dw)
            qc = QuantizeLinear (c, sy, zx)
            h = DequantizeLinear (qc, sy, zx)
            [new] y = Conv (h, v)
        }""",
        sx=f32(0.03),
        zx=np.uint8(128),
        w=int8(4, 3, 3, 3),
        sw=f32(np.full(4, 0.004)),
        zw=np.zeros(4, np.int8),
        sy=f32(0.04),
        v=normal(4, 4, 3, 3),
    )
    feeds = images(1, 3, 8, 8)
    result = quantize_checked(model, feeds, least=None)
    wanted, got = (infer(m, feeds, optimize=False)["h"] for m in (model, result.proto))
    for a, b in zip(wanted, got, strict=True):
        np.testing.assert_array_equal(a, b)
    assert result.sqnr["y"] > 20


def test_a_quantized_tensor_is_a_graph_output() -> None:
    model = build(
        """(float[1, 3, 8, 8] x) => (uint8[1, 4, 6, 6] y) {
            c = Conv (x, w)
            y = QuantizeLinear (c, s, z)
        }""",
        s=f32(0.05),
        z=np.uint8(128),
        w=normal(4, 3, 3, 3),
    )
    assert model.graph.output[0].type.tensor_type.elem_type == TensorProto.UINT8
    result = quantize_checked(model, images(1, 3, 8, 8), least=None)
    feeds = images(1, 3, 8, 8)
    wanted, got = (infer(m, feeds, optimize=True)["y"] for m in (model, result.proto))
    assert max(np.abs(a.astype(int) - b.astype(int)).max() for a, b in zip(wanted, got, strict=True)) <= 3


def test_dequantized_input() -> None:
    """An integer graph input behind a DequantizeLinear."""
    model = build(
        """(uint8[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) {
            d = DequantizeLinear (x, s, z)
            y = Conv (d, w)
        }""",
        s=f32(0.05),
        z=np.uint8(128),
        w=normal(4, 3, 3, 3),
    )
    feeds = [{"x": np.random.default_rng(i).integers(0, 256, (1, 3, 8, 8)).astype(np.uint8)} for i in range(4)]
    result = quantize_checked(model, feeds, least=None)
    assert result.worst > 20
