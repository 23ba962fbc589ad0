"""Batch normalization folds into quantized weights without a single integer being rounded anew."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

import onnxq
from onnxq.graph.fold_quantized_batchnorm import fold_quantized_batchnorm
from onnxq.qparams import quantize
from onnxq.session import Session
from tests.contract import infer
from tests.models import build, f32, images, normal

RNG = np.random.default_rng(3)
GAMMA = f32([1.5, -0.7, 0.0, -2.0])
NORM = {"gamma": GAMMA, "beta": normal(4, seed=1), "mean": normal(4, seed=2), "var": f32([0.5, 1.0, 2.0, 0.1])}
FACTOR = GAMMA.astype(np.float64) / np.sqrt(NORM["var"].astype(np.float64) + 1e-5)


def net(codes: NDArray[Any], scale: NDArray[Any], zero: NDArray[Any]) -> onnx.ModelProto:
    """Stored integers in front of a convolution with a batch normalization behind it."""
    axis = "<axis = 0>" if scale.ndim else ""
    return build(
        f"""(float[1, 3, 6, 6] x) => (float[1, 4, 6, 6] y) {{
            xq = QuantizeLinear (x, sx, zx)
            xd = DequantizeLinear (xq, sx, zx)
            w = DequantizeLinear {axis} (codes, sw, zw)
            c = Conv <pads = [1, 1, 1, 1]> (xd, w, b)
            y = BatchNormalization (c, gamma, beta, mean, var)
        }}""",
        codes=codes,
        sw=scale,
        zw=zero,
        sx=f32(0.05),
        zx=np.uint8(128),
        b=normal(4, seed=7),
        gamma=GAMMA,
        beta=NORM["beta"],
        mean=NORM["mean"],
        var=NORM["var"],
    )


CASES = {
    "narrow": (RNG.integers(-127, 128, (4, 3, 3, 3)).astype(np.int8), f32([0.1, 0.2, 0.3, 0.4]), np.zeros(4, np.int8)),
    "asymmetric": (
        RNG.integers(0, 256, (4, 3, 3, 3)).astype(np.uint8),
        f32([0.1, 0.2, 0.3, 0.4]),
        np.array([128, 3, 250, 100], np.uint8),
    ),
    "per tensor": (RNG.integers(-127, 128, (4, 3, 3, 3)).astype(np.int8), f32(0.1), np.int8(0)),
}


@pytest.mark.parametrize("name", CASES)
def test_no_integer_is_rounded_anew(name: str) -> None:
    codes, scale, zero = CASES[name]
    given = onnxq.read(net(codes, scale, zero))
    model = given.model.clone()
    plan, numbers, notes = fold_quantized_batchnorm(model, given.plan, given.qparams)
    assert "1 batch normalizations" in str(notes[0])
    assert [n.op_type for n in model.graph] == ["Conv"]
    site = next(s for s in plan.sites if s.role == "weight")
    qp, weight = numbers[site.name], model.graph.initializers[site.tensor].const_value
    assert weight is not None
    want = scale * np.where(FACTOR == 0, 1.0, np.abs(FACTOR))
    np.testing.assert_allclose(qp.scale, want, rtol=1e-6)
    made = quantize(weight.numpy(), qp).astype(np.int64) - np.reshape(qp.zero_point, (-1, 1, 1, 1))
    exact = (codes.astype(np.int64) - zero.astype(np.int64).reshape(-1, 1, 1, 1)) * np.sign(FACTOR).reshape(-1, 1, 1, 1)
    np.testing.assert_array_equal(made, exact)
    for feeds in images(1, 3, 6, 6):
        before, after = (Session(m, optimize=False).run(feeds)["y"] for m in (given.model, model))
        np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-4 * float(np.abs(before).max()))


def test_the_lowest_integer_of_a_full_range_has_no_negative() -> None:
    codes, scale, zero = CASES["narrow"]
    codes = codes.copy()
    codes[1, 0, 0, 0] = -128  # channel 1 changes its sign
    given = onnxq.read(net(codes, scale, zero))
    model = given.model.clone()
    plan, numbers, notes = fold_quantized_batchnorm(model, given.plan, given.qparams)
    assert "holds -128" in str(notes[0]) and plan == given.plan and numbers == dict(given.qparams)
    assert [n.op_type for n in model.graph] == ["Conv", "BatchNormalization"]


def test_deploy_folds(tmp_path: Any) -> None:
    model = net(*CASES["narrow"])
    deployed = onnxq.deploy(model, backend="onnxruntime", output=tmp_path / "d.onnx")
    assert not any(n.op_type == "BatchNormalization" for n in onnx.load(tmp_path / "d.onnx").graph.node)
    assert any(s.role == "weight" for s in deployed.plan.sites)
    for feeds in images(1, 3, 6, 6):
        want, got = (infer(m, [feeds], optimize=False)["y"][0] for m in (model, onnx.load(tmp_path / "d.onnx")))
        np.testing.assert_allclose(got, want, atol=2e-3 * float(np.abs(want).max()))
