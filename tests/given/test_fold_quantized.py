"""Batch normalization folds into quantized weights without a single integer being rounded anew."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

import onnxq
from onnxq.backends.onnxruntime import BACKEND
from onnxq.given.fold_quantized import fold_into_quantized
from onnxq.given.unfolded import unfolded
from onnxq.graph.files.load_named import load_named
from onnxq.ort.session import Session
from onnxq.qparams import quantize
from onnxq.ranged import MIN_SCALE
from onnxq.render.reading.read import read
from tests.contract import infer
from tests.models import build, f32, images, normal

RNG = np.random.default_rng(3)
GAMMA = f32([1.5, -0.7, 0.0, -2.0])
NORM = {"gamma": GAMMA, "beta": normal(4, seed=1), "mean": normal(4, seed=2), "var": f32([0.5, 1.0, 2.0, 0.1])}
FACTOR = GAMMA.astype(np.float64) / np.sqrt(NORM["var"].astype(np.float64) + 1e-5)


def net(
    codes: NDArray[Any], scale: NDArray[Any], zero: NDArray[Any], gamma: NDArray[np.float32] = GAMMA
) -> onnx.ModelProto:
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
        gamma=gamma,
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
    given = read(load_named(net(codes, scale, zero)), BACKEND)
    model = given.model.clone()
    plan, numbers, notes = fold_into_quantized(model, given.plan, given.qparams)
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


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("least", [1e-20, 1e-38, -5.6e-45])
def test_a_channel_that_is_hardly_there_keeps_a_scale_that_is_a_number(name: str, least: float) -> None:
    model = net(*CASES[name], gamma=f32([1.5, -0.7, least, -2.0]))
    given = onnxq.read(model)
    assert [n.op_type for n in given.model.graph] == ["Conv"]
    assert all((qp.scale >= MIN_SCALE).all() for qp in given.qparams.values())
    if name != "asymmetric":  # which it has not
        assert onnxq.deploy(model, backend="ncnn").plan.quantized
    for feeds in images(1, 3, 6, 6):
        want = infer(model, [feeds], optimize=False)["y"][0]
        got = Session(given.rendered(), optimize=False).run(feeds)["y"]
        np.testing.assert_allclose(got, want, atol=1e-4 * float(np.abs(want).max()))


def test_one_scale_stays_one_where_all_channels_are_scaled_alike() -> None:
    codes, scale, zero = CASES["per tensor"]
    proto = net(codes, scale, zero, gamma=np.sqrt(NORM["var"] + f32(1e-5)) * 2)
    given = onnxq.read(proto)
    (site,) = [site for site in given.plan.sites if site.role == "weight"]
    qp = given.qparams[site.name]
    assert [n.op_type for n in given.model.graph] == ["Conv"] and qp.scale.shape == qp.zero_point.shape == ()
    assert qp.scale == pytest.approx(0.2) and qp.zero_point == 0


@pytest.mark.parametrize("before", ["c = Relu (xd)", "c = Conv <pads = [1, 1, 1, 1]> (xd, f)"])
def test_what_stands_behind_no_quantized_layer_stays(before: str) -> None:
    proto = net(*CASES["narrow"])
    middle = build(f"(float[1, 3, 6, 6] xd) => (float[1, 4, 6, 6] c) {{ {before} }}").graph.node
    del proto.graph.node[2:4]
    proto.graph.node.insert(2, middle[0])
    if "Conv" in before:
        proto.graph.initializer.append(onnx.numpy_helper.from_array(normal(4, 3, 3, 3), "f"))
    else:
        for end in (*proto.graph.input, *proto.graph.output):
            end.type.tensor_type.shape.dim[1].dim_value = 4
    given = read(load_named(proto), BACKEND)
    plan, numbers, notes = fold_into_quantized(given.model, given.plan, given.qparams)
    assert "BatchNormalization" in {n.op_type for n in given.model.graph} and notes == []
    assert plan.sites == given.plan.sites and numbers == given.qparams


def test_scales_that_no_float32_holds_are_not_folded() -> None:
    codes, scale, zero = CASES["narrow"]
    given = onnxq.read(net(codes, scale * np.float32(1e10), zero, gamma=f32([1.5, -0.7, 1e30, -2.0])))
    assert [n.op_type for n in given.model.graph] == ["Conv", "BatchNormalization"]
    assert any("too large" in note for note in given.notes)


def test_the_lowest_integer_of_a_full_range_has_no_negative() -> None:
    codes, scale, zero = CASES["narrow"]
    codes = codes.copy()
    codes[1, 0, 0, 0] = -128  # channel 1 changes its sign
    given = read(load_named(net(codes, scale, zero)), BACKEND)
    model = given.model.clone()
    plan, numbers, notes = fold_into_quantized(model, given.plan, given.qparams)
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


def test_no_note_says_that_what_is_folded_was_not() -> None:
    notes = onnxq.deploy(net(*CASES["narrow"]), backend="onnxruntime").notes
    assert any("1 batch normalizations folded" in note for note in notes)
    assert not any("not folded" in note for note in notes)


def test_a_note_says_what_stays_unfolded() -> None:
    codes, scale, zero = CASES["narrow"]
    codes = codes.copy()
    codes[1, 0, 0, 0] = -128  # channel 1 changes its sign
    notes = onnxq.deploy(net(codes, scale, zero), backend="onnxruntime").notes
    assert any("not folded" in note for note in notes)


def test_reading_folds_as_deploying_does() -> None:
    model = net(*CASES["narrow"])
    given = onnxq.read(model)
    assert [n.op_type for n in given.model.graph] == ["Conv"]
    assert any("1 batch normalizations folded" in note for note in given.notes)
    weight = next(s.name for s in given.plan.sites if s.role == "weight")
    deployed = onnxq.deploy(model, backend="onnxruntime", options=onnxq.Options(reduce_range=False))
    assert given.qparams[weight] == deployed.qparams[weight]
    for feeds in images(1, 3, 6, 6):
        want = infer(model, [feeds], optimize=False)["y"][0]
        got = Session(given.rendered(), optimize=False).run(feeds)["y"]
        np.testing.assert_allclose(got, want, atol=1e-4 * float(np.abs(want).max()))


def test_a_relu_that_the_quantizer_computes_is_written_out_behind_the_folded_layer() -> None:
    codes, scale, zero = CASES["narrow"]
    model = net(codes, scale, zero)
    made = build(
        """(float[1, 4, 6, 6] y) => (float[1, 4, 6, 6] z) {
            q = QuantizeLinear (y, s, zero)
            d = DequantizeLinear (q, s, zero)
            z = Sigmoid (d)
        }""",
        s=f32(0.05),
        zero=np.uint8(0).reshape(()),
    )
    joined = onnx.compose.merge_models(model, made, io_map=[("y", "y")])
    read_back = unfolded(onnxq.read(joined))
    assert [n.op_type for n in read_back.model.graph] == ["Conv", "Relu", "Sigmoid"]
    for feeds in images(1, 3, 6, 6):
        want = infer(joined, [feeds], optimize=False)["z"][0]
        got = Session(read_back.rendered(), optimize=False).run(feeds)["z"]
        assert np.mean(np.abs(got - want) > 1e-4) < 0.01, "but for ties"
