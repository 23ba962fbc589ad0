"""QOperators: what becomes one, and that it computes what the QDQ model says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto

import onnxq
from onnxq import Options
from onnxq.errors import OptionError
from onnxq.render.qoperator.rewrite import rewrite
from tests.contract import infer
from tests.models import build, constants_of, f32, feeds_for, images, normal
from tests.render.nets import IMAGE, NETS, ROWS, B, V, W, kinds, lsb, quantized


@pytest.mark.parametrize("target", ["onnx_qnn", "onnxruntime"])
@pytest.mark.parametrize("net", NETS)
def test_agrees_with_the_qdq_model(net: str, target: str) -> None:
    """To one step, with graph optimizations and without; valid, and of the same interface."""
    text, arrays, expected = NETS[net]
    q = quantized(text, arrays, target)
    model, qdq = ir.to_proto(q.rendered()), ir.to_proto(q.qdq())
    onnx.checker.check_model(model, full_check=True)
    assert list(model.graph.input) == list(qdq.graph.input)
    assert list(model.graph.output) == list(qdq.graph.output)
    missing = expected - set(kinds(model))
    assert not missing or target == "onnxruntime", f"{missing} not in {kinds(model)}"
    assert not [note for note in q.notes if note.startswith("qoperator")]
    float_ops = {"Conv", "Gemm", "MatMul", "Add", "Mul", "Softmax", "Sigmoid", "LeakyRelu", "AveragePool"}
    assert not {n.op_type for n in model.graph.node if n.name in q.plan.quantized} & float_ops
    feeds = feeds_for(ir.to_proto(q.model), samples=3)
    want = infer(qdq, feeds, optimize=False)["y"]
    step = lsb(model, q)
    for optimize in (False, True):
        got = infer(model, feeds, optimize=optimize)["y"]
        assert max(float(np.abs(a - b).max()) for a, b in zip(want, got, strict=True)) <= 1.01 * step


@pytest.mark.parametrize("target", ["onnx_qnn", "onnxruntime"])
def test_a_convolution_is_exact_integer_arithmetic(target: str) -> None:
    """Weights and bias rounded to nearest, 32-bit sums, one rescaling: as the specification of QLinearConv says."""
    bias = f32(np.linspace(-2, 2, 16))
    q = quantized(
        f"{IMAGE} {{ y = Conv (x, w, b) }}", {"w": normal(16, 8, 1, 1), "b": bias}, target, bias_correction=False
    )
    model = ir.to_proto(q.rendered())
    numbers = constants_of(model)
    conv = next(n for n in model.graph.node if n.op_type == "QLinearConv")
    sx, zx, w, sw, zw, sy, zy, b = (numbers[name] for name in conv.input[1:])
    assert b.dtype == np.int32
    assert np.abs(b - bias / (sx.astype(np.float64) * sw)).max() <= 0.501, "rounded to nearest"
    feed = feeds_for(model, samples=1)[0]
    x = np.clip(np.rint(feed["x"] / sx) + zx, 0, 255).astype(np.int64) - zx
    centred = w.astype(np.int64)[:, :, 0, 0] - zw.astype(np.int64).reshape(-1, 1)
    sums = np.einsum("oc,nchw->nohw", centred, x) + b.reshape(1, -1, 1, 1)
    factor = (sx.astype(np.float64) * sw / sy).reshape(1, -1, 1, 1)
    want = np.clip(np.rint(sums * factor) + zy, 0, 255)
    (got,) = infer(model, [feed], optimize=True)["y"]
    assert np.abs(np.rint(got / sy) + zy - want).max() <= 1
    assert (np.rint(got / sy) + zy == want).mean() > 0.99


def test_a_matrix_product_whose_result_is_float_takes_the_bias_along() -> None:
    q = quantized(f"{ROWS} {{ a = MatMul (x, w)\n s = Add (a, b)\n y = Erf (s) }}", {"w": normal(32, 16), "b": B})
    assert "QLinearMatMul" in kinds(ir.to_proto(q.rendered())), "all tensors of onnx_qnn are integers"
    model = build(f"{ROWS} {{ a = MatMul (x, w)\n s = Add (a, b)\n y = Erf (s) }}", w=normal(32, 16), b=B)
    feeds = feeds_for(model, samples=3)
    options = Options(placement="compute", format="qoperator")
    q = onnxq.quantize(model, feeds, options=options)
    made = ir.to_proto(q.rendered())
    assert kinds(made) == ["QuantizeLinear", "MatMulIntegerToFloat", "Erf"]
    want = infer(ir.to_proto(q.qdq()), feeds, optimize=False)["y"]
    np.testing.assert_allclose(infer(made, feeds, optimize=False)["y"], want, atol=1e-5)


def test_a_clip_that_does_not_saturate_runs_on_integers() -> None:
    """Numbers given by hand: the grid reaches beyond the bounds on both sides."""
    text = (
        "(float[1, 8, 12, 12] x) => (float[n, c, h, w] y) { a = Conv (x, w)\n c = Clip (a, lo, hi)\n y = Conv (c, v) }"
    )
    q = quantized(text, {"w": W, "v": V, "lo": f32(-0.3), "hi": f32(0.7)})
    wide = dict(q.qparams)
    wide["c"] = replace(wide["c"], scale=f32(0.02), zero_point=np.array(100))
    q = replace(q, qparams=wide)
    model = ir.to_proto(q.rendered())
    assert kinds(model) == ["QuantizeLinear", "QLinearConv", "Clip", "QLinearConv", "DequantizeLinear"]
    clip = next(n for n in model.graph.node if n.op_type == "Clip")
    assert [int(constants_of(model)[name]) for name in clip.input[1:]] == [85, 135]
    feeds = feeds_for(model, samples=2)
    want = infer(ir.to_proto(q.qdq()), feeds, optimize=False)["y"]
    for optimize in (False, True):
        got = infer(model, feeds, optimize=optimize)["y"]
        assert max(float(np.abs(a - b).max()) for a, b in zip(want, got, strict=True)) <= 1.01 * lsb(model, q)
    back = onnxq.read(model, backend="onnx_qnn")
    assert "Clip" in {node.op_type for node in back.model.graph}


def test_what_is_no_qoperator_says_why() -> None:
    text = """(float[1, 8, 12, 12] x) => (float[n, c, h, w] y, float[n, c, h, w] z) {
        [wide] a = Conv (x, w)
        [small] y = Conv (a, v)
        [off] z = Conv (a, v)
    }"""
    q = quantized(text, {"w": W, "v": V}, "onnxruntime", override=("small=act_bits=16",), exclude=("off",))
    said = "\n".join(q.notes)
    assert "Conv: its output is not only read by one quantizer: wide" in said
    assert "Conv: uint16 has no QOperator: small" in said
    assert "QLinearConv" not in kinds(ir.to_proto(q.rendered()))


def test_int8_activations_are_refused_or_left_to_onnxruntime() -> None:
    """A QLinearConv of int8 is an order of magnitude slower on x86 than QDQ, which is made uint8 when it is loaded."""
    text, arrays = f"{IMAGE} {{ [a] p = Conv (x, w)\n [b] y = Conv (p, v) }}", {"w": W, "v": V}
    with pytest.raises(OptionError, match="slow as QOperators on x86"):
        quantized(text, arrays, "onnxruntime", symmetric=True)
    q = quantized(text, arrays, "onnxruntime", override=("p=symmetric=true",))
    assert kinds(ir.to_proto(q.rendered())).count("Conv") == 2
    assert sum("qoperator" in note for note in q.notes) == 2


@pytest.mark.parametrize("symmetric", [True, None])
def test_4_bit_weights_are_widened_in_front(symmetric: bool | None) -> None:
    text = f"{IMAGE} {{ y = Conv (x, w) }}"
    q = quantized(text, {"w": W}, "onnxruntime", weight_bits=4, weight_symmetric=symmetric)
    model = ir.to_proto(q.rendered())
    steps = ["Cast"] if symmetric else ["Cast", "Sub", "Cast"]
    assert kinds(model) == ["QuantizeLinear", *steps, "QLinearConv", "DequantizeLinear"]
    stored = TensorProto.INT4 if symmetric else TensorProto.UINT4
    assert stored in {t.data_type for t in model.graph.initializer}


def test_operators_in_a_body_read_integers_from_outside() -> None:
    model = build(
        """(float[1, 8, 8, 8] x, bool c) => (float[1, 16, 4, 4] y) {
            [outer] a = Conv (x, w)
            y = If (c) <
                then_branch = yes () => (float[1, 16, 4, 4] p) { [inner] p = Conv (a, u) },
                else_branch = no () => (float[1, 16, 4, 4] q) { [other] q = Conv (a, v) }
            >
        }""",
        w=W,
        u=normal(16, 16, 3, 3, seed=2),
        v=normal(16, 16, 3, 3, seed=3),
    )
    feeds = [{**feed, "c": np.array(k % 2 == 0)} for k, feed in enumerate(images(1, 8, 8, 8))]
    q = onnxq.quantize(model, feeds, backend="onnx_qnn", options=Options(placement="all"))
    made = ir.to_proto(q.rendered())
    branches = [a.g for n in made.graph.node if n.op_type == "If" for a in n.attribute]
    assert len(branches) == 2
    for branch in branches:
        assert [n.op_type for n in branch.node] == ["QLinearConv", "DequantizeLinear"]
    want = infer(ir.to_proto(q.qdq()), feeds, optimize=False)["y"]
    for optimize in (False, True):
        for a, b in zip(want, infer(made, feeds, optimize=optimize)["y"], strict=True):
            np.testing.assert_allclose(a, b, atol=float(np.ptp(a)) / 100)


@pytest.mark.parametrize("bias", ["float", "coarse", "computed", "huge"])
def test_biases_that_are_not_in_units_of_the_product(bias: str) -> None:
    """A QDQ model by hand: the bias in float, with a scale of its own, from a node, and beyond 32 bits."""
    made = {"float": "b", "huge": "b", "coarse": "d", "computed": "e"}[bias]
    model = build(
        f"""(float[1, 2, 4, 4] x, float[2] e) => (float[1, 2, 4, 4] y) {{
            q = QuantizeLinear (x, s, z)
            f = DequantizeLinear (q, s, z)
            w = DequantizeLinear (k, s, o)
            d = DequantizeLinear (i, c, n)
            a = Conv (f, w, {made})
            r = QuantizeLinear (a, t, z)
            y = DequantizeLinear (r, t, z)
        }}""",
        s=f32(0.01),
        t=f32(0.02),
        z=np.uint8(128),
        k=np.array([[[[100]], [[-50]]], [[[1]], [[127]]]], np.int8),
        o=np.int8(0),
        b=f32([0.30004, -0.20006]) * (1e6 if bias == "huge" else 1),
        i=np.array([3, -2], np.int32),
        c=f32(0.100017),
        n=np.int32(0),
    )
    loaded = ir.from_proto(model)
    for name, node in zip("qfwdary", loaded.graph, strict=True):
        node.name = name
    kept = rewrite(loaded)
    if bias in ("computed", "huge"):
        why = "its bias is computed at run time" if bias == "computed" else "its bias is beyond int32"
        assert kept == {"a": why}
        return
    assert not kept
    conv = next(node for node in loaded.graph if node.op_type == "QLinearConv")
    integers = constants_of(ir.to_proto(loaded))[conv.inputs[8].name]  # type: ignore[union-attr,index]
    assert integers.tolist() == ([3000, -2001] if bias == "float" else [3001, -2000])
    feeds = [{**feed, "e": np.zeros(2, np.float32)} for feed in images(1, 2, 4, 4, samples=2)]
    want, got = infer(model, feeds, optimize=False)["y"], infer(ir.to_proto(loaded), feeds, optimize=False)["y"]
    for a, b in zip(want, got, strict=True):
        assert np.abs(a - b).max() <= 0.0201


def by_hand(body: str, **constants: object) -> tuple[onnx.ModelProto, ir.Model, dict[str, str]]:
    """A QDQ model with a node named n, the same with QOperators, and why what is none is none."""
    model = build(f"(float[1, 2, 4, 4] x) => (float[a, b, c, d] y) {{ {body} }}", **constants)  # type: ignore[arg-type]
    loaded = ir.from_proto(model)
    return model, loaded, rewrite(loaded)


@pytest.mark.parametrize(("scale", "zero", "moved"), [(0.01, 128, True), (0.01, 100, False), (0.02, 128, False)])
def test_integers_are_moved_only_between_grids_that_are_equal_in_scale_and_zero_point(
    scale: float, zero: int, moved: bool
) -> None:
    model, made, kept = by_hand(
        """q = QuantizeLinear (x, s, z)  f = DequantizeLinear (q, s, z)
        [n] p = MaxPool <kernel_shape = [2, 2]> (f)
        r = QuantizeLinear (p, t, u)  y = DequantizeLinear (r, t, u)""",
        s=f32(0.01),
        z=np.uint8(128),
        t=f32(scale),
        u=np.uint8(zero),
    )
    assert kept == ({} if moved else {"n": "its output has another scale than its input"})
    feeds = images(1, 2, 4, 4, samples=2)
    want, got = infer(model, feeds, optimize=False)["y"], infer(ir.to_proto(made), feeds, optimize=False)["y"]
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(("axis", "why"), [(0, {}), (1, {"n": "its weight has a scale for each index of axis 1"})])
def test_a_weight_has_a_scale_for_each_of_its_outputs_or_stays(axis: int, why: dict[str, str]) -> None:
    model, made, kept = by_hand(
        f"""q = QuantizeLinear (x, s, z)  f = DequantizeLinear (q, s, z)
        w = DequantizeLinear <axis = {axis}> (k, v, o)
        [n] c = Conv (f, w)
        r = QuantizeLinear (c, t, z)  y = DequantizeLinear (r, t, z)""",
        s=f32(0.01),
        z=np.uint8(128),
        t=f32(0.02),
        k=np.array([[[[100]], [[-50]]], [[[3]], [[127]]]], np.int8),
        v=f32([0.01, 0.001]),
        o=np.zeros(2, np.int8),
    )
    assert kept == why
    feeds = images(1, 2, 4, 4, samples=2)
    want, got = infer(model, feeds, optimize=False)["y"], infer(ir.to_proto(made), feeds, optimize=False)["y"]
    np.testing.assert_allclose(got, want, atol=0.0201, err_msg="more than one step")


@pytest.mark.parametrize(("scale", "zero", "count"), [(0.01, 128, 1), (0.01, 100, 2), (0.02, 128, 2)])
def test_a_quantizer_behind_another_goes_only_where_it_gives_the_same_integers(
    scale: float, zero: int, count: int
) -> None:
    model, made, _ = by_hand(
        """q = QuantizeLinear (x, s, z)  f = DequantizeLinear (q, s, z)
        r = QuantizeLinear (f, t, u)  y = DequantizeLinear (r, t, u)""",
        s=f32(0.01),
        z=np.uint8(128),
        t=f32(scale),
        u=np.uint8(zero),
    )
    assert kinds(ir.to_proto(made)).count("QuantizeLinear") == count
    feeds = images(1, 2, 4, 4, samples=2)
    want, got = infer(model, feeds, optimize=False)["y"], infer(ir.to_proto(made), feeds, optimize=False)["y"]
    np.testing.assert_array_equal(got, want)
