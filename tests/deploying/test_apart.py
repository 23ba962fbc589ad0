"""Two grids of one tensor stay two."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import onnxq
from tests.contract import infer, sqnr
from tests.models import build, f32, images

TEXT = """(float[1, 4, 6, 6] x) => (float[1, 4, 6, 6] y) {
    r = Relu (x)
    aq = QuantizeLinear (r, s, z)
    ad = DequantizeLinear (aq, s, z)
    bq = QuantizeLinear (r, t, z)
    bd = DequantizeLinear (bq, t, z)
    wd = DequantizeLinear (w, sw, zw)
    c = Conv (ad, wd)
    cq = QuantizeLinear (c, t, u)
    cd = DequantizeLinear (cq, t, u)
    d = Conv (bd, wd)
    dq = QuantizeLinear (d, t, u)
    dd = DequantizeLinear (dq, t, u)
    e = Add (cd, dd)
    eq = QuantizeLinear (e, t, u)
    y = DequantizeLinear (eq, t, u)
}"""


@pytest.mark.parametrize("backend", ["qnn", "onnxruntime"])
def test_an_activation_that_two_readers_quantize_differently(backend: str) -> None:
    source = build(
        TEXT,
        s=f32(0.002),  # saturates at 0.5
        t=f32(0.04),
        z=np.uint8(0),
        u=np.uint8(128),
        w=np.random.default_rng(0).integers(-127, 128, (4, 4, 1, 1)).astype(np.int8),
        sw=f32(0.004),
        zw=np.int8(0),
    )
    made = onnxq.deploy(source, backend=backend)
    feeds = images(1, 4, 6, 6)
    got = infer(ir.serde.serialize_model(made.rendered()), feeds, optimize=False)["y"]
    assert sqnr(infer(source, feeds, optimize=False)["y"], got) > 60
    scales = {float(qp.scale) for qp in made.qparams.values()}
    assert {float(f32(0.002)), float(f32(0.04))} <= scales


@pytest.mark.parametrize("backend", ["tvm", "onnxruntime"])
def test_what_a_body_is_given_and_two_readers_quantize_differently(backend: str) -> None:
    weights = np.random.default_rng(0).integers(-127, 127, (2, 8, 8)).astype(np.int8)
    source = build(
        """(float[3, 4, 8] x) => (float[3, 4, 8] y) {
            y = Scan <num_scan_inputs = 1, body = step (float[4, 8] t) => (float[4, 8] o) {
                aq = QuantizeLinear (t, s, z)  ad = DequantizeLinear (aq, s, z)
                bq = QuantizeLinear (t, u, z)  bd = DequantizeLinear (bq, u, z)
                wd = DequantizeLinear (w, sw, zw)  vd = DequantizeLinear (v, sw, zw)
                p = MatMul (ad, wd)  pq = QuantizeLinear (p, k, z)  pd = DequantizeLinear (pq, k, z)
                q = MatMul (bd, vd)  qq = QuantizeLinear (q, k, z)  qd = DequantizeLinear (qq, k, z)
                o = Add (pd, qd)
            }> (x)
        }""",
        s=f32(0.03),
        u=f32(0.002),  # saturates at a quarter
        k=f32(0.1),
        z=np.uint8(128),
        w=weights[0],
        v=weights[1],
        sw=f32(0.02),
        zw=np.int8(0),
    )
    made = onnxq.deploy(source, backend=backend)
    feeds = images(3, 4, 8)
    got = infer(ir.serde.serialize_model(made.rendered()), feeds, optimize=False)["y"]
    assert sqnr(infer(source, feeds, optimize=False)["y"], got) > 60


def test_equal_grids_of_two_quantizers_are_one() -> None:
    """Some exporters write a pair of quantizers for each reader."""
    source = build(
        TEXT.replace("(r, t, z)", "(r, s, z)").replace("(bq, t, z)", "(bq, s, z)"),
        s=f32(0.02),
        t=f32(0.04),
        z=np.uint8(0),
        u=np.uint8(128),
        w=np.random.default_rng(0).integers(-127, 127, (4, 4, 1, 1)).astype(np.int8),
        sw=f32(0.004),
        zw=np.int8(0),
    )
    made = onnxq.deploy(source, backend="onnxruntime")
    assert [site.tensor for site in made.plan.sites if site.role == "activation"].count("r") == 1
    assert "Identity" not in {node.op_type for node in made.model.graph}
