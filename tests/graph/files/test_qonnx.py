"""Quantizers of QONNX, as Brevitas' export_qonnx writes them: read as what they are, or left and named."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

import onnxq
from onnxq.graph.files.load import load
from tests.contract import infer
from tests.models import build, f32, images, normal

DOMAIN = "qonnx.custom_op.general"
FEEDS = images(1, 3, 8, 8)


def ends(bits: int, signed: int, narrow: int) -> tuple[int, int]:
    """The grid of a Quant, by its documentation."""
    if signed:
        return -(2 ** (bits - 1)) + narrow, 2 ** (bits - 1) - 1
    return 0, 2**bits - 1 - narrow


def quant(
    x: NDArray[Any], scale: NDArray[Any], zero: NDArray[Any], bits: int, signed: int, narrow: int
) -> NDArray[Any]:
    """What a Quant computes, by its documentation: it cuts off before it rounds."""
    return f32((np.rint(np.clip(x / scale + zero, *ends(bits, signed, narrow))) - zero) * scale)


def quantized(
    bits: int = 8,
    *,
    signed: int = 1,
    narrow: int = 0,
    scale: NDArray[Any] | None = None,
    zero: float = 0.0,
    op: str = "Quant",
    rounding: str = "ROUND",
    domain: str = DOMAIN,
    listed: bool = True,
) -> onnx.ModelProto:
    """A convolution with a Quant of its input, of 8 bits, and one of its weight."""
    attributes = f'<narrow = {narrow}, rounding_mode = "{rounding}", signed = {signed}>'
    more = ", float[4, 3, 3, 3] w, float[4] b" if listed else ""
    return build(
        f"""(float[1, 3, 8, 8] x{more}) => (float[1, 4, 6, 6] y) {{
            [in] xq = {domain}.Quant <narrow = 0, rounding_mode = "ROUND", signed = 1> (x, xs, none, eight)
            [weight] wq = {domain}.{op} {attributes} (w, ws, wz, bits)
            [conv] c = Conv (xq, wq, b)
            [out] y = {domain}.Quant <narrow = 0, rounding_mode = "ROUND", signed = 1> (c, ys, none, eight)
        }}""",
        domains={domain: 1},
        xs=f32(0.03),
        ys=f32(0.05),
        none=f32(0),
        eight=f32(8),
        w=normal(4, 3, 3, 3),
        ws=f32(np.linspace(0.01, 0.02, 4).reshape(4, 1, 1, 1)) if scale is None else scale,
        wz=f32(zero),
        bits=f32(bits),
        b=normal(4, seed=1),
    )


def arrays(model: onnx.ModelProto) -> dict[str, NDArray[Any]]:
    return {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}


@pytest.mark.parametrize("domain", [DOMAIN, "onnx.brevitas"])
@pytest.mark.parametrize(
    ("bits", "signed", "narrow", "zero"),
    [(8, 1, 1, 0), (8, 1, 0, 5), (8, 0, 0, 128), (4, 1, 1, 0), (4, 0, 0, 7), (3, 1, 0, 0), (2, 1, 1, 0), (16, 1, 0, 0)],
)
def test_it_computes_the_same(bits: int, signed: int, narrow: int, zero: int, domain: str) -> None:
    model = quantized(bits, signed=signed, narrow=narrow, zero=zero, domain=domain)
    read = load(model)
    assert [value.name for value in read.graph.inputs] == ["x"]
    assert domain not in read.opset_imports
    held = arrays(model)
    weight = quant(held["w"], held["ws"], held["wz"], bits, signed, narrow)
    (got,) = (infer(ir.to_proto(read), [feed], optimize=False)["y"] for feed in FEEDS[:1])
    x = quant(FEEDS[0]["x"], held["xs"], held["none"], 8, 1, 0)
    plain = build("(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] c) { c = Conv (x, w, b) }", w=weight, b=held["b"])
    y = quant(infer(plain, [{"x": x}], optimize=False)["c"][0], held["ys"], held["none"], 8, 1, 0)
    np.testing.assert_allclose(got[0], y, atol=1e-6)
    back = onnxq.read(model)
    numbers = back.qparams["w"]
    assert (numbers.spec.bits, numbers.spec.signed) == (bits, bool(signed))
    assert (numbers.spec.qmin, numbers.spec.qmax) == ends(bits, signed, narrow)
    np.testing.assert_array_equal(numbers.scale, held["ws"].reshape(-1))
    assert (numbers.zero_point == zero).all()


def test_a_weight_with_one_scale_and_a_bias_of_32_bits() -> None:
    model = quantized(scale=f32([0.02]))
    model.graph.node.insert(
        2, onnx.helper.make_node("Quant", ["b", "bs", "none", "wide"], ["bq"], domain=DOMAIN, signed=1, narrow=0)
    )
    model.graph.node[3].input[2] = "bq"
    for name, number in (("bs", 0.0006), ("wide", 24.0)):
        model.graph.initializer.append(onnx.numpy_helper.from_array(f32(number), name))
    back = onnxq.read(model)
    assert back.qparams["w"].scale.shape == ()
    (bias,) = back.plan.by_edge("bias").values()
    assert back.qparams[bias.name].spec.bits == 32


@pytest.mark.parametrize(
    "model",
    [
        quantized(op="Trunc"),
        quantized(rounding="FLOOR"),
        quantized(1),
        quantized(narrow=1, signed=0),
        quantized(zero=0.5),
        quantized(scale=f32(np.full((4, 3, 1, 1), 0.01))),
    ],
    ids=["other", "rounding", "one bit", "narrow", "zero point", "scales of two axes"],
)
def test_what_is_not_read_is_named(model: onnx.ModelProto) -> None:
    with pytest.raises(onnxq.OnnxqError, match=r"quantizes with 1 qonnx\.custom_op\.general::(Quant|Trunc), which"):
        onnxq.deploy(model, backend="onnxruntime")


@pytest.mark.parametrize("backend", ["onnxruntime", "qnn", "openvino", "snpe"])
def test_it_is_deployed(backend: str) -> None:
    model = quantized(narrow=1)
    made = onnxq.deploy(model, backend=backend)
    assert "conv" in made.plan.quantized
    np.testing.assert_allclose(made.qparams["w"].scale, arrays(model)["ws"].reshape(-1), rtol=1e-4)
    assert made.verification is not None and made.verification.against_source is not None
    worst = made.verification.against_source.worst
    assert worst is not None and worst[1].sqnr > 40
