"""QOperators: what becomes one, that it computes what the QDQ model says, and the way back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

import onnxq
from onnxq import Options, Quantized
from onnxq.errors import OptionError
from onnxq.render.qoperator.rewrite import rewrite
from tests.contract import infer
from tests.models import build, f32, feeds_for, images, normal

Array = NDArray[Any]

W, B = normal(16, 8, 3, 3), normal(16, scale=0.5)
V = normal(8, 16, 3, 3, seed=1)
IMAGE = "(float[1, 8, 12, 12] x) => (float[n, c, h, w] y)"
ROWS = "(float[2, 6, 32] x) => (float[n, l, d] y)"

NETS: dict[str, tuple[str, dict[str, Any], set[str]]] = {
    "conv": (f"{IMAGE} {{ y = Conv <pads = [1, 1, 1, 1]> (x, w, b) }}", {"w": W, "b": B}, {"QLinearConv"}),
    "relu": (f"{IMAGE} {{ a = Conv (x, w, b)\n y = Relu (a) }}", {"w": W, "b": B}, {"QLinearConv"}),
    "clip": (
        f"{IMAGE} {{ a = Conv (x, w, b)\n y = Clip (a, lo, hi) }}",
        {"w": W, "b": B, "lo": f32(-0.5), "hi": f32(6)},
        {"QLinearConv"},
    ),
    "strided": (
        f'{IMAGE} {{ y = Conv <auto_pad = "SAME_UPPER", strides = [2, 2], group = 2> (x, w) }}',
        {"w": normal(16, 4, 3, 3)},
        {"QLinearConv"},
    ),
    "depthwise": (
        f"{IMAGE} {{ y = Conv <group = 8, dilations = [2, 2]> (x, w) }}",
        {"w": normal(8, 1, 3, 3)},
        {"QLinearConv"},
    ),
    "conv1d": (
        "(float[1, 8, 20] x) => (float[n, c, l] y) { y = Conv (x, w, b) }",
        {"w": normal(16, 8, 3), "b": B},
        {"QLinearConv"},
    ),
    "conv3d": (
        "(float[1, 8, 4, 5, 6] x) => (float[n, c, d, h, w] y) { y = Conv (x, k) }",
        {"k": normal(4, 8, 3, 3, 3)},
        {"QLinearConv"},
    ),
    "gemm": (
        "(float[4, 32] x) => (float[4, 16] y) { a = Gemm (x, w, b)\n y = LeakyRelu <alpha = 0.2> (a) }",
        {"w": normal(32, 16), "b": B},
        {"QGemm", "QLinearLeakyRelu"},
    ),
    "gemm of rows": (
        "(float[4, 32] x) => (float[4, 16] y) { a = Gemm <transB = 1> (x, w, b)\n y = Sigmoid (a) }",
        {"w": normal(16, 32), "b": normal(1, 16)},
        {"QGemm", "QLinearSigmoid"},
    ),
    "matmul": (
        f"{ROWS} {{ a = MatMul (x, w)\n y = Add (a, b) }}",
        {"w": normal(32, 16), "b": B},
        {"QLinearMatMul", "QLinearAdd"},
    ),
    "product": (
        f"{ROWS} {{ t = Transpose <perm = [0, 2, 1]> (x)\n p = MatMul (x, t)\n s = Softmax (p)\n y = MatMul (s, x) }}",
        {},
        {"QLinearSoftmax", "Transpose"},
    ),
    "softmax of an inner axis": (
        f"{ROWS} {{ a = MatMul (x, w)\n s = Softmax <axis = 1> (a)\n y = Add (s, x) }}",
        {"w": normal(32, 32)},
        {"QLinearSoftmax", "QLinearAdd"},
    ),
    "squeeze and excitation": (
        f"""{IMAGE} {{
            a = Conv <pads = [1, 1, 1, 1]> (x, w, b)
            g = GlobalAveragePool (a)
            h = Conv (g, k)
            s = Sigmoid (h)
            y = Mul (a, s)
        }}""",
        {"w": W, "b": B, "k": normal(16, 16, 1, 1)},
        {"QLinearConv", "QLinearGlobalAveragePool", "QLinearSigmoid", "QLinearMul"},
    ),
    "pools": (
        f"""{IMAGE} {{
            a = Conv (x, w)
            m = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (a)
            y = AveragePool <kernel_shape = [3, 3], pads = [1, 0, 0, 1], strides = [2, 2], ceil_mode = 1> (m)
        }}""",
        {"w": W},
        {"QLinearConv", "MaxPool", "QLinearAveragePool"},
    ),
    "concat": (
        f"{IMAGE} {{ a = Sigmoid (x)\n l = LeakyRelu <alpha = 0.1> (x)\n y = Concat <axis = 1> (l, a, k) }}",
        {"k": normal(1, 2, 12, 12)},
        {"QLinearConcat", "QLinearSigmoid", "QLinearLeakyRelu"},
    ),
    "moved": (
        """(float[1, 8, 12, 12] x) => (float[n, l, d] y) {
            a = Conv (x, w)
            t = Transpose <perm = [0, 2, 3, 1]> (a)
            r = Reshape (t, shape)
            u, v = Split <axis = 1> (r)
            p = MatMul (u, m)
            q = MatMul (v, m)
            y = Add (p, q)
        }""",
        {"w": W, "shape": np.array([1, 100, 16]), "m": normal(16, 16)},
        {"QLinearConv", "Transpose", "Reshape", "Split", "QLinearMatMul", "QLinearAdd"},
    ),
    "resized": (
        f'{IMAGE} {{ a = Conv (x, w)\n r = Resize <mode = "nearest"> (a, , scales)\n y = Conv (r, v) }}',
        {"w": W, "scales": f32([1, 1, 2, 2]), "v": V},
        {"QLinearConv", "Resize"},
    ),
    "float between": (
        f"{IMAGE} {{ a = Conv (x, w)\n t = Tanh (a)\n y = Conv (t, v) }}",
        {"w": W, "v": V},
        {"QLinearConv", "Tanh", "QuantizeLinear", "DequantizeLinear"},
    ),
}


def quantized(text: str, constants: dict[str, Any], target: str = "onnx_qnn", **options: Any) -> Quantized:
    model = build(text, **constants)
    chosen = Options(placement="all", format="qoperator", **options)
    return onnxq.quantize(model, feeds_for(model, samples=3), backend=target, options=chosen)


def kinds(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def constants(model: onnx.ModelProto) -> dict[str, Array]:
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


def lsb(model: onnx.ModelProto, q: Quantized) -> float:
    """One step of the last quantizer in front of the output; of a float output, 1/255 of what its numbers span."""
    node = next(n for n in model.graph.node if "y" in n.output)
    if node.op_type == "DequantizeLinear":
        return float(constants(model)[node.input[1]])
    feeds = feeds_for(ir.to_proto(q.model), samples=3)
    return float(np.ptp(infer(ir.to_proto(q.model), feeds, optimize=False)["y"])) / 255


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
@pytest.mark.parametrize("net", NETS)
def test_read_back_and_written_again_it_is_the_same(net: str, target: str) -> None:
    text, arrays, _ = NETS[net]
    q = quantized(text, arrays, target)
    model = ir.to_proto(q.rendered())
    again = onnxq.read(model, backend=target)
    assert not again.notes
    assert "Q" not in {node.op_type[0] for node in again.model.graph}, "a float model"
    back = ir.to_proto(replace(again, format="qoperator").rendered())
    assert sorted(kinds(back)) == sorted(kinds(model))
    assert {n.name for n in back.graph.node} == {n.name for n in model.graph.node}
    feeds = feeds_for(model, samples=1)
    np.testing.assert_array_equal(infer(back, feeds, optimize=False)["y"], infer(model, feeds, optimize=False)["y"])


@pytest.mark.parametrize("target", ["onnx_qnn", "onnxruntime"])
def test_a_convolution_is_exact_integer_arithmetic(target: str) -> None:
    """Weights and bias rounded to nearest, 32-bit sums, one rescaling: as the specification of QLinearConv says."""
    bias = f32(np.linspace(-2, 2, 16))
    q = quantized(
        f"{IMAGE} {{ y = Conv (x, w, b) }}", {"w": normal(16, 8, 1, 1), "b": bias}, target, bias_correction=False
    )
    model = ir.to_proto(q.rendered())
    numbers = constants(model)
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
    q = replace(q, qparams=wide, _made=[])
    model = ir.to_proto(q.rendered())
    assert kinds(model) == ["QuantizeLinear", "QLinearConv", "Clip", "QLinearConv", "DequantizeLinear"]
    clip = next(n for n in model.graph.node if n.op_type == "Clip")
    assert [int(constants(model)[name]) for name in clip.input[1:]] == [85, 135]
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


def test_4_bit_weights_are_widened_in_front() -> None:
    q = quantized(f"{IMAGE} {{ y = Conv (x, w) }}", {"w": W}, "onnxruntime", weight_bits=4)
    model = ir.to_proto(q.rendered())
    assert kinds(model) == ["QuantizeLinear", "Cast", "QLinearConv", "DequantizeLinear"]
    assert TensorProto.INT4 in {t.data_type for t in model.graph.initializer}


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


def test_qoperators_of_another_tool_are_read() -> None:
    """A model by hand: a QLinearAdd of tensors with scales of their own, and a QLinearConv with channels last."""
    model = build(
        """(float[1, 2, 4, 4] x) => (float[1, 2, 4, 4] y) {
            q = QuantizeLinear (x, s, z)
            a = com.microsoft.QLinearAdd (q, s, z, q, s, z, t, u)
            y = DequantizeLinear (a, t, u)
        }""",
        domains={"com.microsoft": 1},
        s=f32(0.05),
        z=np.uint8(100),
        t=f32(0.1),
        u=np.uint8(90),
    )
    q = onnxq.read(model)
    assert [node.op_type for node in q.model.graph] == ["Add"]
    assert {name: int(p.zero_point) for name, p in q.qparams.items()} == {"x": 100, "y": 90}
    assert [float(q.qparams[name].scale) for name in "xy"] == pytest.approx([0.05, 0.1])
    model.graph.node[1].attribute.append(onnx.helper.make_attribute("channels_last", 1))
    assert any("has channels last: left as it is" in note for note in onnxq.read(model).notes)


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
        k=np.array([[[[100]], [[-50]]], [[[3]], [[127]]]], np.int8),
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
    integers = constants(ir.to_proto(loaded))[conv.inputs[8].name]  # type: ignore[union-attr,index]
    assert integers.tolist() == ([3000, -2001] if bias == "float" else [3001, -2000])
    feeds = [{**feed, "e": np.zeros(2, np.float32)} for feed in images(1, 2, 4, 4, samples=2)]
    want, got = infer(model, feeds, optimize=False)["y"], infer(ir.to_proto(loaded), feeds, optimize=False)["y"]
    for a, b in zip(want, got, strict=True):
        assert np.abs(a - b).max() <= 0.0201
