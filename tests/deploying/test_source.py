"""A model given is brought into a target's form without a number of its quantizers becoming untrue."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxq
from onnxq import Options
from onnxq.backend_choice import backend_named
from onnxq.deploying.source import in_form
from onnxq.errors import BackendError
from tests.contract import infer, sqnr
from tests.models import build, f32, images, normal

CODES = np.random.default_rng(3).integers(-127, 128, (4, 4, 1, 1)).astype(np.int8)
GRIDS = {
    "s": f32(0.03),
    "z": np.uint8(128),
    "t": f32(0.08),
    "sw": f32([0.004, 0.005, 0.006, 0.007]),
    "zw": np.zeros(4, np.int8),
    "w": CODES,
}
HEAD = """(float[1, 4, 6, 6] x) => (float[1, 4, 6, 6] y) {
    xq = QuantizeLinear (x, s, z)
    xd = DequantizeLinear (xq, s, z)
    wd = DequantizeLinear <axis = 0> (w, sw, zw)
"""
TAIL = """
    bq = QuantizeLinear (b, t, z)
    y = DequantizeLinear (bq, t, z)
}"""
FEEDS = images(1, 4, 6, 6)
VECTOR = f32([0.6, -1.7, 1.2, -0.8]).reshape(1, 4, 1, 1)


def same(source: onnx.ModelProto, backend: str, least: float = 60.0) -> onnxq.Quantized:
    """Deployed, and the same numbers as those of the model given, in dB; less where the target rounds less often."""
    made = onnxq.deploy(source, backend=backend)
    result = ir.serde.serialize_model(made.rendered())
    name, size = source.graph.input[0].name, [d.dim_value for d in source.graph.input[0].type.tensor_type.shape.dim]
    feeds = [{name: f["x"]} for f in images(*size)]
    output = source.graph.output[0].name
    assert sqnr(infer(source, feeds, optimize=False)[output], infer(result, feeds, optimize=False)[output]) > least
    return made


@pytest.mark.parametrize("opset", [13, 17, 20])
@pytest.mark.parametrize("backend", ["qnn", "onnxruntime", "openvino", "tvm", "rknn", "academic"])
@pytest.mark.parametrize(
    "middle",
    [
        "c = Conv (xd, wd)  d = Sub (c, v)  e = Mul (d, v)  b = Add (e, v)",
        "c = Conv (xd, wd)  cq = QuantizeLinear (c, t, z)  d = DequantizeLinear (cq, t, z)  b = Mul (d, v)",
        "c = Conv (xd, wd)  b = Div (c, v)",
    ],
    ids=["float", "quantized", "division"],
)
def test_arithmetic_beside_a_layer_is_not_folded_into_its_integers(middle: str, backend: str, opset: int) -> None:
    source = build(HEAD + middle + TAIL, opset=opset, v=VECTOR, **GRIDS)
    if backend == "qnn" and "cq" not in middle:
        with pytest.raises(BackendError, match="tensor 'c' is not quantized in the model given"):
            onnxq.deploy(source, backend=backend)
        return
    made = same(source, backend, least=25)
    (weight,) = (made.qparams[s.name] for s in made.plan.sites if s.role == "weight")
    np.testing.assert_allclose(weight.scale, GRIDS["sw"], rtol=1e-4)


@pytest.mark.parametrize("backend", ["qnn", "onnxruntime"])
def test_a_factor_of_a_gemm_is_not_folded_into_its_integers(backend: str) -> None:
    source = build(
        """(float[2, 4] x) => (float[2, 4] y) {
            xq = QuantizeLinear (x, s, z)
            xd = DequantizeLinear (xq, s, z)
            wd = DequantizeLinear (w, sw, zw)
            vd = DequantizeLinear (v, sw, zw)
            a = Gemm (xd, wd)
            aq = QuantizeLinear (a, t, z)
            ad = DequantizeLinear (aq, t, z)
            b = Gemm <alpha = 3.5> (ad, vd)
            bq = QuantizeLinear (b, t, z)
            y = DequantizeLinear (bq, t, z)
        }""",
        opset=13,
        **{**GRIDS, "w": CODES.reshape(4, 4), "v": CODES.reshape(4, 4).T, "sw": f32(0.004), "zw": np.int8(0)},
    )
    made = same(source, backend, least=25)
    assert [kept.op for kept in made.plan.kept_float] == ["Gemm"]


def test_equal_weights_keep_scales_of_their_own() -> None:
    float_weight = normal(16, 16, 1, 1)  # 1 KB, from which on equal constants are stored once
    source = build(
        """(float[1, 16, 6, 6] x) => (float[1, 16, 6, 6] y) {
            xq = QuantizeLinear (x, s, z)
            xd = DequantizeLinear (xq, s, z)
            wq = QuantizeLinear (w1, sa, zs)
            wd = DequantizeLinear (wq, sa, zs)
            vq = QuantizeLinear (w2, sb, zs)
            vd = DequantizeLinear (vq, sb, zs)
            c = Conv (xd, wd)
            cq = QuantizeLinear (c, t, z)
            cd = DequantizeLinear (cq, t, z)
            b = Conv (cd, vd)
            bq = QuantizeLinear (b, t, z)
            y = DequantizeLinear (bq, t, z)
        }""",
        opset=13,
        **{k: GRIDS[k] for k in "szt"},
        w1=float_weight,
        w2=float_weight.copy(),
        sa=f32(0.01),
        sb=f32(0.02),
        zs=np.int8(0),
    )
    made = same(source, "qnn")
    weights = sorted(float(made.qparams[s.name].scale) for s in made.plan.sites if s.role == "weight")
    assert weights == [float(f32(0.01)), float(f32(0.02))]


def test_a_pad_whose_result_has_a_grid_of_its_own_stays() -> None:
    middle = "p = Pad (xd, pads)  pq = QuantizeLinear (p, t, z)  pd = DequantizeLinear (pq, t, z)  b = Conv (pd, wd)"
    grids = {**GRIDS, "w": np.repeat(np.repeat(CODES, 3, 2), 3, 3)}
    source = build(HEAD + middle + TAIL, opset=13, pads=np.array([0, 0, 1, 1, 0, 0, 1, 1]), **grids)
    made = same(source, "openvino", least=25)
    assert float(made.qparams["p"].scale) == pytest.approx(float(GRIDS["t"]), rel=1e-4)


def test_weights_that_a_target_turns_take_their_scales_along() -> None:
    source = build(
        """(float[1, 4] x) => (float[1, 3] y) {
            xq = QuantizeLinear (x, s, zero)
            xd = DequantizeLinear (xq, s, zero)
            wd = DequantizeLinear <axis = 1> (w, sw, zw)
            y = Gemm (xd, wd)
        }""",
        s=f32(0.03),
        zero=np.int8(0),
        w=CODES.reshape(4, 4)[:, :3],
        sw=f32([0.01, 0.02, 0.04]),
        zw=np.zeros(3, np.int8),
    )
    made = same(source, "ncnn")
    (weight,) = (made.qparams[s.name] for s in made.plan.sites if s.role == "weight")
    assert weight.scale.tolist() == f32([0.01, 0.02, 0.04]).tolist() and weight.spec.granularity.axis == 0  # type: ignore[union-attr]


def test_a_function_in_parts_that_the_target_has_keeps_the_numbers_inside() -> None:
    text = """(float[2, 6, 8] x) => (float[2, 6, 8] y) {
        xq = QuantizeLinear (x, s, z)
        xd = DequantizeLinear (xq, s, z)
        m = ReduceMean <axes = [-1]> (xd)
        mq = QuantizeLinear (m, t, z)
        md = DequantizeLinear (mq, t, z)
        c = Sub (xd, md)
        cq = QuantizeLinear (c, s, z)
        cd = DequantizeLinear (cq, s, z)
        q = Mul (cd, cd)
        v = ReduceMean <axes = [-1]> (q)
        e = Add (v, eps)
        r = Sqrt (e)
        y = Div (cd, r)
    }"""
    constants: dict[str, Any] = {"eps": f32(1e-5).reshape(1), **{name: GRIDS[name] for name in "szt"}}
    source = build(text, **constants)
    _, formed, _ = in_form(source, backend_named("qnn"), Options())
    assert "LayerNormalization" not in {node.op_type for node in formed.model.graph}
    assert {"x", "m", "c"} <= {value.name for node in formed.model.graph for value in node.inputs if value is not None}


def test_a_function_with_an_operator_that_the_target_has_not_becomes_one_that_it_has() -> None:
    grids: dict[str, Any] = {"s": f32(0.03), "z": np.uint8(128)}
    text = """(float[2, 6, 8] x) => (float[2, 6, 8] y) {
        xq = QuantizeLinear (x, s, z)
        xd = DequantizeLinear (xq, s, z)
        a = Div (xd, root)
        e = Erf (a)
        eq = QuantizeLinear (e, s, z)
        ed = DequantizeLinear (eq, s, z)
        f = Add (ed, one)
        g = Mul (xd, f)
        h = Mul (g, half)
        hq = QuantizeLinear (h, s, z)
        y = DequantizeLinear (hq, s, z)
    }"""
    constants: dict[str, Any] = {
        "root": f32(np.sqrt(2)).reshape(1),
        "one": f32(1).reshape(1),
        "half": f32(0.5).reshape(1),
    }
    source = build(text, **grids, **constants)
    made = onnxq.deploy(source, backend="qnn")
    assert [node.op_type for node in made.model.graph] == ["Gelu"] and not made.plan.kept_float
    assert any("does not quantize 'e'" in note for note in made.notes)
    same(source, "qnn", least=25)


@pytest.mark.parametrize("backend", ["qnn", "onnxruntime", "tvm"])
def test_a_weight_that_another_reads_in_float_is_rounded_for_its_reader_alone(backend: str) -> None:
    middle = """
        vq = QuantizeLinear (v, coarse, zs)
        vd = DequantizeLinear (vq, coarse, zs)
        c = Conv (xd, vd)
        cq = QuantizeLinear (c, t, z)
        cd = DequantizeLinear (cq, t, z)
        b = Conv (cd, v)
    """
    weight = normal(4, 4, 1, 1)
    source = build(HEAD + middle + TAIL, v=weight, coarse=f32(0.5), zs=np.int8(0), **GRIDS)
    made = same(source, backend, least=30)
    assert [kept.op for kept in made.plan.kept_float] == ["Conv"]


@pytest.mark.parametrize("backend", ["academic", "tensorrt", "ncnn", "openvino"])
def test_numbers_in_front_of_a_reordering_hold_behind_it(backend: str) -> None:
    """A layer reads what a Flatten makes of a quantized tensor: on targets that quantize no Flatten too."""
    source = build(
        """(float[1, 4, 3, 3] x) => (float[1, 4] y) {
            xq = QuantizeLinear (x, s, z)
            xd = DequantizeLinear (xq, s, z)
            wd = DequantizeLinear (w, sw, z)
            a = Conv (xd, wd)
            aq = QuantizeLinear (a, t, z)
            ad = DequantizeLinear (aq, t, z)
            u = Unsqueeze (ad, last)
            f = Flatten (u)
            vd = DequantizeLinear (v, sw, z)
            y = Gemm <transB = 1> (f, vd)
        }""",
        s=f32(0.03),
        t=f32(0.05),
        z=np.int8(0),
        sw=f32(0.01),
        last=np.array([4]),
        w=CODES.reshape(4, 4, 1, 1),
        v=np.resize(CODES, (4, 36)),
    )
    made = same(source, backend)
    assert {"Conv", "Gemm"} <= set(made.plan.quantized.values())
    assert not [note for note in made.notes if "does not quantize" in note]
    (site,) = (site for site in made.plan.sites if any(edge.node == "Gemm" and not edge.index for edge in site.readers))
    assert float(made.qparams[site.name].scale) == pytest.approx(0.05, rel=1e-5)


@pytest.mark.parametrize("past", ["", ", float[2, 3, 4] a"], ids=["alone", "an output reads past"])
def test_numbers_in_front_of_a_selection_hold_behind_it(past: str) -> None:
    """A layer reads rows that are chosen out of a quantized tensor, as torch.export writes ``x[rows, chosen]``."""
    source = build(
        f"""(float[2, 3, 4] x) => (float[2, 36] y{past}) {{
            a = Sin (x)
            xq = QuantizeLinear (a, s, z)
            xd = DequantizeLinear (xq, s, z)
            chosen = GatherND (xd, which)
            vd = DequantizeLinear (v, sw, z)
            y = Gemm (chosen, vd)
        }}""",
        s=f32(0.03),
        z=np.int8(0),
        sw=f32(0.01),
        which=np.array([[0, 2], [1, 1]]),
        v=np.resize(CODES, (4, 36)),
    )
    made = same(source, "onnxruntime")
    assert "Gemm" in made.plan.quantized.values()
    (site,) = (site for site in made.plan.sites if any(edge.node == "Gemm" and not edge.index for edge in site.readers))
    assert float(made.qparams[site.name].scale) == pytest.approx(0.03, rel=1e-5)
