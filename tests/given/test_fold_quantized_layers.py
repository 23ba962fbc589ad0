"""Folding batch normalization into the integers of layers of other kinds, and what is left alone with its reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxq
from onnxq.backends.onnxruntime import BACKEND
from onnxq.given.fold_quantized import fold_into_quantized
from onnxq.graph.files.load_named import load_named
from onnxq.ort.session import Session
from onnxq.plan import Plan
from onnxq.qparams import QParams
from onnxq.quantized import Quantized
from onnxq.render.reading.read import read
from tests.contract import infer
from tests.models import build, f32, images, normal

NORM: dict[str, Any] = {
    "gamma": f32([1.5, -0.7, 0.0, -2.0]),
    "beta": normal(4, seed=1),
    "mean": normal(4, seed=2),
    "var": f32([0.5, 1.0, 2.0, 0.1]),
}
FINISH = "y = BatchNormalization (c, gamma, beta, mean, var)"


def codes(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(3).integers(-127, 128, shape).astype(np.int8)


def net(
    body: str, x: str, y: str, shape: tuple[int, ...], axis: int | None, outputs: str = "", **more: Any
) -> onnx.ModelProto:
    """Stored integers in front of a layer that gives c, whose batch normalization gives y."""
    channels = 1 if axis is None else shape[axis]
    where = "" if axis is None else f"<axis = {axis}>"
    return build(
        f"(float[{x}] x) => (float[{y}] y{outputs}) {{ w = DequantizeLinear {where} (codes, sw, zw)  {body} }}",
        codes=codes(*shape),
        sw=f32(0.1) if axis is None else f32(np.linspace(0.1, 0.4, channels)),
        zw=np.int8(0) if axis is None else np.zeros(channels, np.int8),
        **{**NORM, **more},
    )


def folded(proto: onnx.ModelProto, feeds: list[dict[str, Any]]) -> tuple[Quantized, Quantized, str]:
    """Before and after, which must give the same numbers, and what is said."""
    given = read(load_named(proto), BACKEND)
    model = given.model.clone()
    plan, numbers, notes = fold_into_quantized(model, given.plan, given.qparams)
    for sample in feeds:
        before, after = (Session(m, optimize=False).run(sample) for m in (given.model, model))
        for name, want in before.items():
            np.testing.assert_allclose(after[name], want, rtol=1e-4, atol=1e-4 * float(np.abs(want).max()))
    return given, replace(given, model=model, plan=plan, qparams=numbers), "\n".join(map(str, notes))


@pytest.mark.parametrize(
    ("body", "x", "y", "shape", "axis", "new_axis"),
    [
        (f"c = Gemm (x, w)  {FINISH}", "3, 8", "3, 4", (8, 4), 1, 1),
        (f"c = Gemm <transB = 1> (x, w)  {FINISH}", "3, 8", "3, 4", (4, 8), 0, 0),
        (f"c = MatMul (x, w)  {FINISH}", "3, 8", "3, 4", (8, 4), None, 1),
        (f"c = ConvTranspose (x, w)  {FINISH}", "1, 3, 6, 6", "1, 4, 8, 8", (3, 4, 3, 3), 1, 1),
    ],
)
def test_layers_of_every_kind(body: str, x: str, y: str, shape: tuple[int, ...], axis: Any, new_axis: int) -> None:
    proto = net(body, x, y, shape, axis)
    before, after, said = folded(proto, images(*map(int, x.split(",")), samples=2))
    assert "1 batch normalizations folded" in said
    assert "BatchNormalization" not in [node.op_type for node in after.model.graph]
    site = next(s for s in after.plan.sites if s.role == "weight")
    old, new = before.qparams[site.name], after.qparams[site.name]
    factor = np.abs(NORM["gamma"]) / np.sqrt(NORM["var"].astype(np.float64) + 1e-5)
    np.testing.assert_allclose(new.scale, old.scale * np.where(factor == 0, 1, factor), rtol=1e-6)
    assert new.spec.granularity.axis == new_axis  # type: ignore[union-attr]


def test_another_reader_of_the_weight_keeps_its_own_integers() -> None:
    proto = net(
        f"c = Conv (x, w)  {FINISH}  z = Conv (x, w)",
        "1, 3, 6, 6",
        "1, 4, 4, 4",
        (4, 3, 3, 3),
        0,
        ", float[1, 4, 4, 4] z",
    )
    before, after, said = folded(proto, images(1, 3, 6, 6, samples=2))
    assert "1 batch normalizations folded" in said
    name = next(s.name for s in before.plan.sites if s.role == "weight")
    weights = [s for s in after.plan.sites if s.role == "weight"]
    assert len(weights) == 2
    assert after.qparams[name] == before.qparams[name]
    assert all(len(site.readers) == 1 for site in weights)


@pytest.mark.parametrize(
    ("proto", "reason"),
    [
        (
            net(
                f"q = Conv (x, w)  i = QuantizeLinear (q, sc, zc)  c = DequantizeLinear (i, sc, zc)  {FINISH}",
                "1, 3, 6, 6",
                "1, 4, 4, 4",
                (4, 3, 3, 3),
                0,
                sc=f32(0.5),
                zc=np.uint8(128),
            ),
            "is quantized before it",
        ),
        (
            net(
                f"c = ConvTranspose <group = 3> (x, w)  {FINISH}",
                "1, 3, 6, 6",
                "1, 3, 8, 8",
                (3, 1, 3, 3),
                None,
                **{name: array[:3] for name, array in NORM.items()},
            ),
            "groups of a transposed convolution",
        ),
        (
            net(f"c = Conv (x, w)  {FINISH}", "1, 3, 6, 6", "1, 4, 4, 4", (4, 3, 3, 3), 1),
            "not those of its output channels",
        ),
        (
            net(f"c = MatMul (x, w)  {FINISH}", "1, 4, 6, 8", "1, 4, 6, 4", (8, 4), 1),
            "channels are not the last axis",
        ),
    ],
    ids=["quantized between", "groups", "another axis", "channels before the last axis"],
)
def test_what_cannot_be_folded_stays_with_its_reason(proto: onnx.ModelProto, reason: str) -> None:
    shape = [dim.dim_value for dim in proto.graph.input[0].type.tensor_type.shape.dim]
    before, after, said = folded(proto, images(*shape, samples=2))
    assert reason in said
    assert "BatchNormalization" in [node.op_type for node in after.model.graph]
    assert (after.plan, after.qparams) == (before.plan, dict(before.qparams))


@pytest.mark.parametrize("exact", [True, False])
def test_powers_of_two_are_folded_only_into_powers_of_two(exact: bool) -> None:
    proto = net(f"c = Conv (x, w)  {FINISH}", "1, 3, 6, 6", "1, 4, 4, 4", (4, 3, 3, 3), None)
    for tensor in proto.graph.initializer:
        number = {"sw": f32(0.125), "gamma": f32([2, -4, 1, 0.5]), "var": f32(np.ones(4))}.get(tensor.name)
        if number is not None:
            tensor.CopyFrom(
                onnx.numpy_helper.from_array(number if exact or tensor.name != "gamma" else number * 3, tensor.name)
            )
    norm = next(node for node in proto.graph.node if node.op_type == "BatchNormalization")
    norm.attribute.append(onnx.helper.make_attribute("epsilon", 0.0))
    given = read(load_named(proto), BACKEND)
    name = next(site.name for site in given.plan.sites if site.role == "weight")
    spec = replace(given.qparams[name].spec, power_of_two=True)
    numbers = {**given.qparams, name: QParams(spec, given.qparams[name].scale, given.qparams[name].zero_point)}
    plan: Plan = replace(
        given.plan, sites=tuple(replace(s, spec=spec) if s.name == name else s for s in given.plan.sites)
    )
    model = given.model.clone()
    _, made, notes = fold_into_quantized(model, plan, numbers)
    if exact:
        np.testing.assert_array_equal(made[name].scale, f32([0.25, 0.5, 0.125, 0.0625]))
    else:
        assert "no longer be powers of two" in str(notes[0])
        assert made == numbers


@pytest.mark.parametrize("bits", [8, 32])
def test_the_grid_of_a_bias_is_none_of_the_folded_one(bits: int) -> None:
    """Brevitas quantizes biases to 8 bits, too: folded, they reach farther than that grid."""
    kind = np.dtype(f"int{bits}").type
    model = build(
        """(float[1, 3, 6, 6] x) => (float[1, 4, 4, 4] y) {
            xq = QuantizeLinear (x, s, z)  xd = DequantizeLinear (xq, s, z)
            wd = DequantizeLinear (w, t, p)  bd = DequantizeLinear (b, u)
            c = Conv (xd, wd, bd)
            n = BatchNormalization (c, gamma, beta, mean, var)
            nq = QuantizeLinear (n, v, z)  y = DequantizeLinear (nq, v, z)
        }""",
        s=f32(0.03),
        z=np.uint8(128),
        w=np.random.default_rng(0).integers(-127, 128, (4, 3, 3, 3)).astype(np.int8),
        t=f32(0.01),
        p=np.int8(0),
        b=np.array([100, -100, 50, 0], kind),
        u=f32(0.001),
        v=f32(0.1),
        gamma=f32([1.5, 0.5, -1, 1]),
        beta=f32([3, -2, 1, 0.5]),
        mean=f32([0.1, -0.2, 0, 0.3]),
        var=f32([1, 0.5, 2, 1]),
    )
    feeds = images(1, 3, 6, 6)
    want = infer(model, feeds, optimize=False)["y"]
    for made in (onnxq.read(model), onnxq.deploy(model, backend="qnn")):
        assert not [node for node in made.model.graph if node.op_type == "BatchNormalization"]
        got = infer(ir.to_proto(made.rendered()), feeds, optimize=False)["y"]
        for a, b in zip(want, got, strict=True):
            assert np.abs(a - b).max() < 0.11, "at most one step"
