"""Group 7: what is special about single operators."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest

from onnxq import Options, PerTensor, QuantSpec
from tests.cases import g07, g07_recurrent
from tests.contract import ALL, Outcome, quantize_checked
from tests.models import build, constants_of, f32, feeds_for, images, normal

SIGNED = Options(placement="all", symmetric=True)


def kinds(result: Outcome) -> list[str]:
    """Operator types that run on integers."""
    return list(result.quantized.plan.quantized.values())


def spec_of(result: Outcome, role: str) -> QuantSpec:
    """The spec of the only site of a role."""
    found = [site.spec for site in result.quantized.plan.sites if site.role == role]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("group", [1, 2, 4])
@pytest.mark.parametrize("per_channel", [True, False])
def test_convtranspose_group_per_channel(group: int, per_channel: bool) -> None:
    result = quantize_checked(
        *g07.convtranspose_group_per_channel(group), Options(placement="all", per_channel=per_channel)
    )
    assert list(result.quantized.plan.stored.values()) == ["ConvTranspose"]


def test_convtranspose_between_convs() -> None:
    quantize_checked(*g07.convtranspose_between_convs())


@pytest.mark.parametrize("shape", [(), (1,), (8,), (1, 8), (1, 1), (3, 1), (3, 8)])
@pytest.mark.parametrize("per_channel", [True, False])
def test_gemm_bias(shape: tuple[int, ...], per_channel: bool) -> None:
    """Only a bias with one value for each output channel may become int32; a scalar or (M, ...) one may stay float."""
    result = quantize_checked(*g07.gemm_bias(shape), Options(placement="all", per_channel=per_channel))
    assert kinds(result) == ["Gemm"]
    constants = {t.name: t.data_type for t in result.proto.graph.initializer}
    made_by = {o: n for n in result.proto.graph.node for o in n.output}
    gemm = next(n for n in result.proto.graph.node if n.op_type == "Gemm")
    bias = gemm.input[2]
    if shape in ((8,), (1, 8)):
        assert constants[made_by[bias].input[0]] == onnx.TensorProto.INT32
    elif bias in made_by:
        assert shape[:1] != (3,), "a bias that differs by row has no scale of data times weight"
        assert constants[made_by[bias].input[0]] == onnx.TensorProto.INT32


@pytest.mark.parametrize(("alpha", "beta"), [(2.0, 1.0), (0.5, 3.0), (1.0, 0.0), (-1.5, 0.25), (0.0, 1.0)])
def test_gemm_alpha2(alpha: float, beta: float) -> None:
    result = quantize_checked(*g07.gemm_alpha2(alpha, beta), agree=35)
    gemm = next(n for n in result.proto.graph.node if n.op_type == "Gemm")
    assert {a.name: a.f for a in gemm.attribute}.get("alpha", 1.0) == 1.0, "alpha must be folded into the weight"


def test_gemm_alpha_of_activations_alone() -> None:
    model = build(
        "(float[3, 16] x, float[16, 8] z) => (float[3, 8] y) { [g] y = Gemm <alpha = 2.0> (x, z) }",
    )
    result = quantize_checked(model, feeds_for(model), least=None)
    assert result.sqnr["y"] > 20


def test_gemm_trans_a() -> None:
    result = quantize_checked(*g07.gemm_trans_a(), least=None)
    assert result.sqnr["y"] > 20


@pytest.mark.parametrize("per_channel", [True, False])
def test_matmul_3d_weight(per_channel: bool) -> None:
    result = quantize_checked(*g07.matmul_3d_weight(), Options(placement="all", per_channel=per_channel))
    assert spec_of(result, "weight").granularity == PerTensor()


@pytest.mark.parametrize(("x", "w"), [((8,), (8, 6)), ((4, 8), (8,)), ((1, 1, 8), (8, 6)), ((2, 3, 4, 8), (8, 6))])
def test_matmul_of_other_ranks(x: tuple[int, ...], w: tuple[int, ...]) -> None:
    y = [*x[:-1], *w[1:]]
    dims = ", ".join(map(str, x))
    model = build(f"(float[{dims}] x) => (float[{', '.join(map(str, y))}] y) {{ y = MatMul (x, w) }}", w=normal(*w))
    quantize_checked(model, images(*x))


def test_matmul_with_the_weight_on_the_left() -> None:
    result = quantize_checked(*g07.matmul_weight_on_the_left(), least=None)
    assert result.sqnr["y"] > 20


def test_attention_dynamic_matmul_softmax() -> None:
    result = quantize_checked(*g07.attention_dynamic_matmul_softmax())
    assert kinds(result).count("MatMul") == 6, "both inputs of the two products are activations"
    softmax = next(s for s in result.quantized.plan.sites if s.tensor == "p")
    assert softmax.fixed == (0.0, 1.0)
    assert result.quantized.qparams[softmax.name].scale == np.float32(1 / 255)


@pytest.mark.parametrize("filler", [g07.FLT_MIN, -3.0e38, -1e34, -np.inf])
@pytest.mark.parametrize("placement", ["auto", "all"])
def test_softmax_mask_fltmin(filler: float, placement: str) -> None:
    result = quantize_checked(*g07.softmax_mask_fltmin(filler), Options(placement=placement))  # type: ignore[arg-type]
    for site in result.quantized.plan.sites:
        assert float(result.quantized.qparams[site.name].scale.max()) < 1.0, f"{site.name}: the mask reached the range"


@pytest.mark.parametrize("filler", [-1e4, -1e9])
def test_softmax_mask_of_moderate_size(filler: float) -> None:
    quantize_checked(g07.masked_attention(filler), images(1, 48, 64, samples=3), Options())


def test_relu_symmetric_int8() -> None:
    result = quantize_checked(*g07.relu_symmetric_int8(), SIGNED)
    assert "Relu" in result.ops, "a symmetric quantizer does not clip at 0"


def test_relu_asymmetric_uint8_vanishes() -> None:
    model = build(
        "(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) { a = Conv (x, w)  y = Relu (a) }", w=normal(4, 3, 3, 3)
    )
    assert "Relu" not in quantize_checked(model, images(1, 3, 8, 8)).ops


def test_clip_neg_range() -> None:
    result = quantize_checked(*g07.clip_neg_range(), least=30)
    assert "Clip" in result.ops


@pytest.mark.parametrize(
    ("low", "high"),
    [
        (0.0, 6.0),
        (0.5, 1.0),
        (-0.1, 0.1),
        (0.0, 0.0),
        (0.0, None),
        (None, 0.5),
        (None, None),
        (-100.0, 100.0),
        (2.0, 1.0),
    ],
)
@pytest.mark.parametrize("symmetric", [None, True])
def test_clip_of_any_range(low: float | None, high: float | None, symmetric: bool | None) -> None:
    bounds: dict[str, Any] = {name: f32(value) for name, value in (("low", low), ("high", high)) if value is not None}
    model = build(
        "(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) { a = Conv (x, w)  y = Clip (a) }",
        w=normal(4, 3, 3, 3),
        **bounds,
    )
    model.graph.node[1].input.extend(name if name in bounds else "" for name in ("low", "high"))
    quantize_checked(model, images(1, 3, 8, 8), Options(placement="all", symmetric=symmetric), least=25)


def test_clip_with_a_bound_computed_at_run_time() -> None:
    quantize_checked(*g07.clip_bound_computed_at_run_time())


def test_clip6_as_attributes() -> None:
    quantize_checked(*g07.clip6_as_attributes())


@pytest.mark.parametrize("value", [0.0, 10.0, -10.0])
def test_pad_value_outside_range(value: float) -> None:
    quantize_checked(*g07.pad_value_outside_range(value))


def test_pad_value_after_a_conv() -> None:
    quantize_checked(*g07.pad_value_after_a_conv())


def test_two_pads_no_constant_value() -> None:
    quantize_checked(*g07.two_pads_no_constant_value())


def test_pad_minus_infinity_before_maxpool() -> None:
    result = quantize_checked(*g07.pad_minus_infinity_before_maxpool())
    for site in result.quantized.plan.sites:
        assert float(result.quantized.qparams[site.name].scale.max()) < 1.0, "the infinite pad value joined a range"


def test_concat_branch_scales_1000x() -> None:
    model, feeds = g07.concat_branch_scales_1000x()
    result = quantize_checked(model, feeds)
    assert "'cat'" in result.notes, "the lost branch must be named"
    assert "'b'" in result.notes
    auto = quantize_checked(model, feeds, Options(), least=None)
    split = [{"a": s["x"]} for s in feeds]
    assert split
    small = [array[:, 4:] for array in branch(model, feeds)]
    got = [array[:, 4:] for array in branch(auto.proto, feeds)]
    noise = sum(float(np.square(p - q).sum()) for p, q in zip(small, got, strict=True))
    signal = sum(float(np.square(p).sum()) for p in small)
    assert 10 * np.log10(signal / max(noise, 1e-30)) > 20, "by default the small branch must survive"


def branch(model: onnx.ModelProto, feeds: Any) -> list[np.ndarray[Any, Any]]:
    from tests.contract import infer

    return infer(model, feeds, optimize=True)["y"]


@pytest.mark.parametrize(("kind", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("placement", ["auto", "all"])
def test_lstm(kind: str, gates: int, direction: str, placement: str) -> None:
    model = g07_recurrent.recurrent(kind, gates, direction=direction)
    result = quantize_checked(model, images(5, 2, 8), Options(placement=placement), least=None)  # type: ignore[arg-type]
    if "r" in result.quantized.plan.stored:
        kept = {t.name: t.data_type for t in result.proto.graph.initializer}
        assert onnx.TensorProto.INT8 in kept.values()
        assert "w" not in kept, "no float copy of the weight stays"
    else:
        assert result.reasons["r"]
    assert result.sqnr["y"] > 25
    if placement == "all":
        assert "r" in result.quantized.plan.stored


def test_lstm_with_peephole_and_initial_state() -> None:
    model, feeds = g07_recurrent.lstm_with_state()
    quantize_checked(model, feeds)


@pytest.mark.parametrize(
    ("body", "out"),
    [
        ("d = DepthToSpace <blocksize = 2> (c)  y = Conv (d, w1)", "1, 8, 10, 10"),
        ("s1, s2 = Split <axis = 1> (c, half)  y = Concat <axis = 1> (s2, s1)", "1, 4, 6, 6"),
        ("g = Gather <axis = 1> (c, picks)  y = Relu (g)", "1, 2, 6, 6"),
        ('r = Resize <mode = "nearest"> (c, , scales)  y = Relu (r)', "1, 4, 12, 12"),
        ('r = Resize <mode = "linear"> (c, , scales)  y = Relu (r)', "1, 4, 12, 12"),
        ("a = AveragePool <kernel_shape = [2, 2]> (c)  y = Relu (a)", "1, 4, 5, 5"),
        ("a = GlobalAveragePool (c)  y = Sigmoid (a)", "1, 4, 1, 1"),
        ("a = LeakyRelu <alpha = 0.1> (c)  y = Identity (a)", "1, 4, 6, 6"),
        ("a = HardSwish (c)  y = Relu (a)", "1, 4, 6, 6"),
        ("a = Sigmoid (c)  y = Mul (a, c)", "1, 4, 6, 6"),
        ("a = PRelu (c, slope)  y = Relu (a)", "1, 4, 6, 6"),
        ("a = ReduceMean <axes = [2, 3]> (c)  y = Relu (a)", "1, 4, 1, 1"),
        ("a = InstanceNormalization (c, four, four)  y = Relu (a)", "1, 4, 6, 6"),
        ("m, i = MaxPool <kernel_shape = [2, 2]> (c)  f = Cast <to = 1> (i)  y = Add (m, f)", "1, 4, 5, 5"),
        ("a = Sub (c, c2)  y = Div (a, four4)", "1, 4, 6, 6"),
        ("a = Expand (c, wide)  y = Relu (a)", "2, 4, 6, 6"),
        ("a = Softmax <axis = 1> (c)  y = MaxPool <kernel_shape = [2, 2]> (a)", "1, 4, 5, 5"),
        ("a = Tanh (c)  y = Conv (a, w1)", "1, 4, 4, 4"),
        ("a = Slice (c, starts, ends)  y = Relu (a)", "1, 2, 6, 6"),
        ("a = Where (mask, c, c2)  y = Relu (a)", "1, 4, 6, 6"),
        ("a = Pow (c, two)  b = Sqrt (a)  y = Mul (b, b)", "1, 4, 6, 6"),
        ('a = Einsum <equation = "bchw->bhwc"> (c)  y = Relu (a)', "1, 6, 6, 4"),
    ],
)
@pytest.mark.parametrize("symmetric", [None, True])
def test_operators_behind_a_conv(body: str, out: str, symmetric: bool | None) -> None:
    channels = 4
    constants: dict[str, Any] = {
        "half": np.array([2, 2]),
        "picks": np.array([3, 0]),
        "scales": f32([1, 1, 2, 2]),
        "slope": f32(np.full((4, 1, 1), 0.2)),
        "four": f32([1, 2, 0.5, 1]),
        "four4": f32(np.linspace(1, 2, 4).reshape(4, 1, 1)),
        "wide": np.array([2, 4, 6, 6]),
        "starts": np.array([0, 1, 0, 0]),
        "ends": np.array([1, 3, 6, 6]),
        "mask": np.random.default_rng(0).random((1, 4, 6, 6)) > 0.5,
        "two": f32(2),
        "w1": normal(8 if "DepthToSpace" in body else 4, 1 if "DepthToSpace" in body else 4, 3, 3, seed=5),
    }
    used = {name: value for name, value in constants.items() if name in re.findall(r"\w+", body)}
    second = "c2 = Conv (x, v)" if "c2" in body else ""
    weights: dict[str, Any] = {"w": normal(channels, 3, 3, 3), **({"v": normal(4, 3, 3, 3, seed=1)} if second else {})}
    model = build(f"(float[1, 3, 8, 8] x) => (float[{out}] y) {{ c = Conv (x, w) {second} {body} }}", **weights, **used)
    quantize_checked(model, images(1, 3, 8, 8), Options(placement="all", symmetric=symmetric))


@pytest.mark.parametrize(
    "attributes",
    [
        'auto_pad = "SAME_UPPER"',
        "pads = [2, 0, 1, 1]",
        "strides = [2, 1], pads = [1, 1, 1, 1]",
        "dilations = [2, 2]",
        "group = 2",
        "group = 4",
    ],
)
def test_conv_attributes(attributes: str) -> None:
    group = {"group = 2": 2, "group = 4": 4}.get(attributes, 1)
    model = build(
        f"(float[N, 4, 9, 9] x) => (float[N, 8, H, W] y) {{ y = Conv <{attributes}> (x, w, b) }}",
        w=normal(8, 4 // group, 3, 3),
        b=normal(8, seed=1),
    )
    quantize_checked(model, images(2, 4, 9, 9))


@pytest.mark.parametrize("rank", [1, 3])
def test_conv_of_other_ranks(rank: int) -> None:
    dims = ", ".join(["8"] * rank)
    model = build(
        f"(float[1, 3, {dims}] x) => (float[1, 4, {dims}] y) {{ a = Conv (x, w, b)  y = Relu (a) }}",
        w=normal(4, 3, *[1] * rank),
        b=normal(4, seed=1),
    )
    quantize_checked(model, images(1, 3, *[8] * rank))


def test_weights_read_back_as_they_were_meant() -> None:
    """Per-channel weights of a Conv, dequantized by hand, are within half a step of the float ones where they are
    rounded to nearest."""
    w = normal(4, 3, 3, 3) * f32([1e-3, 1, 100, 1e4]).reshape(4, 1, 1, 1)
    model = build("(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) { y = Conv (x, w) }", w=w)
    result = quantize_checked(model, images(1, 3, 8, 8), replace(ALL, effort="fast"))
    constants = constants_of(result.proto)
    dq = next(n for n in result.proto.graph.node if n.op_type == "DequantizeLinear" and n.input[0].startswith("w"))
    scale = constants[dq.input[1]].reshape(4, 1, 1, 1)
    error = np.abs(constants[dq.input[0]].astype(np.float64) * scale - w)
    assert (error <= scale * 0.5001).all()
