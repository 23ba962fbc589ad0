"""What quantizes in a model, whoever wrote it, with the numbers that stand there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnxruntime.quantization import quantize_dynamic

import onnxq
from onnxq.graph.files.load import load
from onnxq.render.reading.quantized_tensor import QuantizedTensor
from onnxq.render.reading.quantizers import quantizers
from onnxq.weight_only import quantize_weights
from tests.models import build, f32, images, normal


def found(model: onnx.ModelProto | Path) -> dict[str, QuantizedTensor]:
    """Quantizers by the tensors that they quantize, each of which has one."""
    listed = list(quantizers(load(model)))
    by_name = {one.tensor: one for one in listed}
    assert len(by_name) == len(listed)
    return by_name


def test_scales_that_the_model_is_given_are_computed() -> None:
    model = build(
        "(float[1, 4] x, float s, uint8 z) => (float[1, 4] y) { q = QuantizeLinear (x, s, z)\n"
        " y = DequantizeLinear (q, s, z) }"
    )
    assert found(model) == {"x": QuantizedTensor("x", "activation", "uint8", 0, None, None, None, (), output=True)}


def test_biases_and_weights_that_a_cast_and_a_mul_unpack() -> None:
    model = build(
        """(float[1, 4] x) => (float[1, 3] y) {
            b = DequantizeLinear (bq, s)
            wide = Cast <to = 1> (wq)
            w = Mul (wide, t)
            g = Gemm (x, w, b)
            sums = Cast <to = 1> (n)
            y = Mul (g, sums)
        }""",
        s=np.float32(0.5),
        t=f32([1, 2, 3]),
        bq=np.arange(3, dtype=np.int32),
        wq=np.ones((4, 3), np.int8),
        n=np.arange(3, dtype=np.int32),
    )
    assert found(model) == {
        "bq": QuantizedTensor("bq", "bias", "int32", 1, None, (0.5, 0.5), (0, 0), ("Gemm",)),
        "wq": QuantizedTensor("wq", "weight", "int8", 3, 1, (1.0, 3.0), (0, 0), ("Gemm",)),
    }, "integers of 32 bits that a Cast makes float are counts"


def test_a_wide_activation_is_no_bias() -> None:
    model = build(
        "(int32[1, 4] x) => (float[1, 4] y) { f = Cast <to = 1> (x)\n q = QuantizeLinear <output_dtype = 5> (f, s)\n"
        " y = DequantizeLinear (q, s) }",
        opset=21,
        ir_version=10,
        s=np.float32(1),
    )
    assert [(one.role, one.dtype) for one in found(model).values()] == [("activation", "int16")]


@pytest.mark.parametrize(("bits", "dtype"), [(3, "uint3"), (4, "uint4"), (6, "int6")])
def test_the_type_of_a_fake_quantizer_is_its_grid(bits: int, dtype: str) -> None:
    model = build("(float[1, 8] x) => (float[1, 4] y) { h = Relu (x)\n y = MatMul (h, w) }", w=normal(8, 4))
    made = onnxq.quantize(model, images(1, 8), options=onnxq.Options(placement="all", weight_bits=bits))
    types = {s.tensor: f"{'' if s.spec.signed else 'u'}int{s.spec.bits}" for s in made.plan.sites}
    listed = {one.tensor: one.dtype for one in quantizers(made.fake_quantize())}
    assert listed == types and types["w"] == dtype


def test_scales_found_while_the_model_runs(tmp_path: Path) -> None:
    """By onnxruntime's own dynamic quantizer: operators of the standard, then fused ones."""
    onnx.save(build("(float[2, 8] x) => (float[2, 4] y) { y = MatMul (x, w) }", w=normal(8, 4)), tmp_path / "m.onnx")
    quantize_dynamic(tmp_path / "m.onnx", tmp_path / "d.onnx", per_channel=True)
    made = found(tmp_path / "d.onnx")
    assert made["x"] == QuantizedTensor("x", "activation", "uint8", 0, None, None, None, ("MatMulInteger",))
    weight = made["w_quantized"]
    assert (weight.role, weight.dtype, weight.readers) == ("weight", "int8", ("MatMulInteger",))
    assert weight.scale is None and weight.zero_point == (0, 0), "its scales are applied to the product"

    fused = build(
        "(float[2, 8] x) => (float[2, 4] y) { y = com.microsoft.DynamicQuantizeMatMul (x, w, s, z) }",
        domains={"com.microsoft": 1},
        w=np.ones((8, 4), np.uint8),
        s=f32([1, 2, 3, 4]),
        z=np.array([7, 8, 9, 10], np.uint8),
    )
    made = found(fused)
    assert made["x"].scale is None and made["x"].role == "activation"
    assert made["w"] == QuantizedTensor("w", "weight", "uint8", 4, 1, (1.0, 4.0), (7, 10), ("DynamicQuantizeMatMul",))


@pytest.mark.parametrize("symmetric", [True, False])
def test_packed_weights_have_the_numbers_of_those_that_a_dequantize_linear_reads(
    tmp_path: Path, symmetric: bool
) -> None:
    """Of a layer with an odd number of blocks, and of a table that rows are picked from."""
    model = build(
        "(int64[1, 6] i) => (float[1, 6, 26] y) { x = Gather (t, i)\n y = MatMul (x, w) }",
        w=normal(80, 26),
        t=normal(100, 80, seed=3) + np.float32(0.5),
    )
    onnx.save(model, tmp_path / "m.onnx")
    for name in ("qdq", "matmulnbits"):
        quantize_weights(tmp_path / "m.onnx", tmp_path / f"{name}.onnx", block=16, symmetric=symmetric, format=name)
    plain, packed = found(tmp_path / "qdq.onnx"), found(tmp_path / "matmulnbits.onnx")
    assert plain.keys() == packed.keys() == {"t_quantized", "w_quantized"}
    for name, readers in (("t_quantized", "GatherBlockQuantized"), ("w_quantized", "MatMulNBits")):
        one, other = plain[name], packed[name]
        assert (other.role, other.readers, other.scales) == ("weight", (readers,), one.scales)
        assert other.scale is not None and one.scale is not None
        assert one.zero_point is not None and other.zero_point is not None
        shift = 0 if one.dtype.startswith("u") else 1 << (int(one.dtype.removeprefix("int")) - 1)
        assert other.dtype == f"uint{one.dtype.lstrip('uint')}"
        assert other.zero_point == (one.zero_point[0] + shift, one.zero_point[1] + shift)
    assert plain["t_quantized"].axis == packed["t_quantized"].axis == 1
    zeros = plain["w_quantized"].zero_point
    assert zeros is not None and (zeros[0] == zeros[1]) is symmetric
    if not symmetric:
        assert packed["w_quantized"].scale == pytest.approx(plain["w_quantized"].scale)


def test_blocks_of_four_bits() -> None:
    model = build(
        "(float[4, 8] x) => (float[4, 8] y) { w = DequantizeLinear <axis = 0, block_size = 4> (q, s, z)\n"
        " y = MatMul (x, w) }",
        opset=21,
        ir_version=10,
        s=np.arange(1, 17, dtype=np.float32).reshape(2, 8),
    )
    model.graph.initializer.append(helper.make_tensor("q", TensorProto.INT4, [8, 8], np.arange(-8, 8).repeat(4)))
    model.graph.initializer.append(helper.make_tensor("z", TensorProto.INT4, [2, 8], [-3] * 15 + [2]))
    assert found(model) == {"q": QuantizedTensor("q", "weight", "int4", 16, 0, (1.0, 16.0), (-3, 2), ("MatMul",))}


def test_experts_have_weights_of_their_own(tmp_path: Path) -> None:
    """Row by row and in 4 bits, zero points packed where they are given."""
    experts, size, hidden = 2, 8, 6
    zeros = np.array([[0x21, 0x43, 0x65], [0x87, 0xA9, 0xCB]], np.uint8)
    model = build(
        f"(float[3, {size}] x, float[3, {experts}] r) => (float[3, {size}] y) {{"
        " y = com.microsoft.QMoE <k = 1, expert_weight_bits = 4> (x, r, a, sa, , b, sb, , , , , za) }",
        domains={"com.microsoft": 1},
        a=np.zeros((experts, hidden, size // 2), np.uint8),
        sa=np.arange(1, 1 + experts * hidden, dtype=np.float32).reshape(experts, hidden),
        b=np.zeros((experts, size, hidden // 2), np.uint8),
        sb=np.ones((experts, size), np.float32),
        za=zeros,
    )
    assert found(model) == {
        "a": QuantizedTensor("a", "weight", "uint4", 12, 1, (1.0, 12.0), (1, 12), ("QMoE",)),
        "b": QuantizedTensor("b", "weight", "uint4", 16, 1, (1.0, 1.0), (8, 8), ("QMoE",)),
    }


@pytest.mark.parametrize(
    ("node", "weights"),
    [
        ("QAttention <num_heads = 1> (x, w, b, s, t, , z, u)", {"w": ("int8", 2, (0.5, 0.75), (1, 2))}),
        ("DynamicQuantizeLSTM <hidden_size = 1> (x, w, v, , , , , , t, u, s, z)",
         {"w": ("int8", 2, (0.5, 0.75), (1, 2)), "v": ("int8", 1, (0.25, 0.25), (3, 3))}),
    ],
)  # fmt: skip
def test_fused_operators_have_scales_at_places_of_their_own(
    node: str, weights: dict[str, tuple[str, int, tuple[float, float], tuple[int, int]]]
) -> None:
    model = build(
        f"(float[1, 2, 4] x) => (float[1, 2, 4] y) {{ y = com.microsoft.{node} }}",
        domains={"com.microsoft": 1},
        w=np.ones((4, 2), np.int8),
        v=np.ones((1, 4), np.int8),
        b=f32([0, 0]),
        s=f32(0.25),
        z=np.int8(3),
        t=f32([0.5, 0.75]),
        u=np.array([1, 2], np.int8),
    )
    listed = found(model)
    got = {n: (q.dtype, q.scales, q.scale, q.zero_point) for n, q in listed.items() if q.role == "weight"}
    assert got == weights and all(q.axis == (1 if q.scales > 1 else None) for q in listed.values())


@pytest.mark.parametrize(("count", "bits"), [(3, 4), (4, 3)])
def test_zero_points_that_do_not_fit_are_no_error(count: int, bits: int) -> None:
    model = build(
        f"(float[1, 32] x) => (float[1, 4] y) {{ y = com.microsoft.MatMulNBits"
        f" <K = 32, N = 4, bits = {bits}, block_size = 16> (x, w, s, z) }}",
        domains={"com.microsoft": 1},
        w=np.zeros((4, 2, 8), np.uint8),
        s=np.ones((4, 2), np.float32),
        z=np.zeros(count, np.uint8),
    )
    assert found(model)["w"].zero_point is None


def test_a_weight_that_several_read_is_listed_once() -> None:
    """As two layers with the same scales do; with other scales it is another quantizer."""
    node = "com.microsoft.MatMulNBits <K = 32, N = 4, bits = 4, block_size = 32> ({}, w, {})"
    text = " ".join(
        f"{name} = {node.format(*read)}" for name, read in (("a", ("x", "s")), ("b", ("z", "s")), ("c", ("z", "t")))
    )
    model = build(
        f"""(float[2, 32] x, float[2, 32] z) => (float[2, 4] y, float[2, 4] u) {{
            {text} d = Add (a, b) y = Add (c, d)
            v = DequantizeLinear (q, r) o = Relu (v) p = DequantizeLinear (q, r) u = Mul (o, p)
        }}""",
        opset=21,
        ir_version=10,
        domains={"com.microsoft": 1},
        w=np.full((4, 1, 16), 0x37, np.uint8),
        s=normal(4) ** 2 + f32(0.1),
        t=normal(4) ** 2 + f32(0.5),
        q=np.ones((2, 4), np.int8),
        r=f32(0.5),
    )
    listed = list(quantizers(load(model)))
    assert [(one.tensor, one.readers) for one in listed] == [
        ("w", ("MatMulNBits",)),
        ("w", ("MatMulNBits",)),
        ("q", ("Relu", "Mul")),
    ]
    assert listed[0].scale != listed[1].scale
