"""Scales and zero points of a plan's sites."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

import onnxq
from onnxq import Options
from onnxq.backend_choice import backend_named
from onnxq.backends.qnn import BACKEND
from onnxq.graph.values import constant_array
from onnxq.numbers import choose_numbers, unusable_tensors
from onnxq.planning.planner import make_plan
from onnxq.prepare import Prepared
from onnxq.qparams import dequantize, quantize
from tests.models import build, f32, images, normal, verified_sqnr
from tests.planning.test_planner import residual

ALL = Options(placement="all", bias_correction=False)


def test_tied_sites_share_the_numbers_of_their_root() -> None:
    q = onnxq.quantize(residual(), images(1, 16, 8, 8), options=ALL)
    assert q.plan.by_name["p"].tied_to == "t"
    assert q.qparams["p"] == q.qparams["t"]


def test_weights_take_the_absolute_maximum_of_each_channel() -> None:
    model = residual()
    q = onnxq.quantize(model, images(1, 16, 8, 8), options=replace(ALL, reduce_range=False))
    weight = normal(16, 16, 3, 3)
    np.testing.assert_allclose(q.qparams["w1"].scale, np.abs(weight).max(axis=(1, 2, 3)) / 127, rtol=1e-6)


@pytest.mark.parametrize(("low", "high"), [(2.0, 5.0), (-5.0, -2.0), (-1.0, 3.0)])
def test_a_constant_operand_keeps_all_of_its_range_and_zero(low: float, high: float) -> None:
    constant = np.random.default_rng(0).uniform(low, high, (8, 1, 1)).astype(np.float32)
    constant[:2, 0, 0] = low, high
    model = build("(float[1, 8, 4, 4] x) => (float[1, 8, 4, 4] y) { y = Add (x, c) }", c=constant)
    q = onnxq.quantize(model, images(1, 8, 4, 4), options=ALL)
    lowest, highest = min(low, 0.0), max(high, 0.0)
    numbers = q.qparams["c"]
    assert float(numbers.scale) == pytest.approx((highest - lowest) / 255, rel=1e-6)
    assert int(numbers.zero_point) == round(-lowest / (highest - lowest) * 255)


def test_bias_scale_is_the_product_and_the_bias_exact_to_half_a_step() -> None:
    model = build(
        "(float[1, 8, 4, 4] x) => (float[1, 8, 4, 4] y) { y = Conv (x, w, b) }", w=normal(8, 8, 1, 1), b=normal(8)
    )
    q = onnxq.quantize(model, images(1, 8, 4, 4), options=ALL)
    scale = q.qparams["b"].scale.reshape(-1)
    np.testing.assert_array_equal(scale, q.qparams["x"].scale * q.qparams["w"].scale)
    stored = dequantize(quantize(normal(8), q.qparams["b"]), q.qparams["b"])
    assert (np.abs(stored - normal(8)) <= scale / 2 + 1e-7).all()


@pytest.mark.parametrize("shrink", [1e-12, 1e-30, 1e-38, 0.0])
def test_a_bias_too_large_for_its_scale_raises_the_scale_of_the_weight(shrink: float) -> None:
    weight = normal(8, 8, 1, 1)
    weight[2] *= np.float32(shrink)
    model = build("(float[1, 8, 4, 4] x) => (float[1, 8, 4, 4] y) { y = Conv (x, w, b) }", w=weight, b=f32([5.0] * 8))
    q = onnxq.quantize(model, images(1, 8, 4, 4), options=ALL)
    stored = dequantize(quantize(f32([5.0] * 8), q.qparams["b"]), q.qparams["b"])
    assert stored[2] == pytest.approx(5.0, rel=2e-5)
    assert (q.qparams["b"].scale > 0).all() and np.isfinite(q.qparams["b"].scale).all()


def test_one_scale_of_a_weight_makes_room_for_the_largest_bias() -> None:
    bias = f32([1e-3, 5.0, -2.0, 0, 0, 0, 0, 0])
    model = build(
        "(float[1, 8, 4, 4] x) => (float[1, 8, 4, 4] y) { y = Conv (x, w, b) }", w=normal(8, 8, 1, 1) * 1e-12, b=bias
    )
    options = replace(ALL, per_channel=False)
    q = onnxq.quantize(model, images(1, 8, 4, 4), options=options)
    assert q.qparams["w"].scale.ndim == 0
    stored = dequantize(quantize(bias, q.qparams["b"]), q.qparams["b"])
    np.testing.assert_allclose(stored, bias, rtol=2e-5)


def test_fixed_ranges_follow_from_the_operator() -> None:
    model = build(
        "(float[1, 16, 8, 8] x) => (float[1, 16, 8, 8] y) { a = Conv (x, w)\n s = Sigmoid (a)\n y = Conv (s, w) }",
        w=normal(16, 16, 1, 1),
    )
    q = onnxq.quantize(model, images(1, 16, 8, 8), options=ALL)
    assert float(q.qparams["s"].hi) == pytest.approx(1.0)
    assert int(q.qparams["s"].zero_point) == 0


def embedding(joined: str = "y = Add (t, h)") -> tuple[onnx.ModelProto, list[dict[str, NDArray[Any]]]]:
    """Rows of a table of which the last, the largest, is never asked for, beside data smaller than they are."""
    table = normal(12, 8, scale=1.0)
    table[-1] *= 9
    model = build(
        f"(float[4, 8] x, int64[4] k) => (float[n, 8] y) {{ h = MatMul (x, w)\n t = Gather (table, k)\n {joined} }}",
        table=table,
        w=normal(8, 8, scale=0.1),
    )
    rng = np.random.default_rng(3)
    feeds: list[dict[str, NDArray[Any]]]
    feeds = [{"x": normal(4, 8, seed=s, scale=1.0), "k": rng.integers(0, 9, 4)} for s in range(4)]
    return model, feeds


@pytest.mark.parametrize(("backend", "bits"), [("qnn", 8), ("qnn", 16), ("snpe", 8), ("snpe", 16), ("onnx_qnn", 8)])
def test_rows_of_a_table_have_its_scale_and_nothing_of_it_is_clipped(backend: str, bits: int) -> None:
    model, feeds = embedding()
    q = onnxq.quantize(model, feeds, backend=backend, options=Options(act_bits=bits))
    table, scale = constant_array(q.model.graph.initializers["table"]), float(q.qparams["table"].scale)
    assert table is not None
    assert q.plan.by_name["t"].tied_to == "table"
    assert q.qparams["t"] == q.qparams["table"]
    stored = dequantize(quantize(table, q.qparams["table"]), q.qparams["table"])
    assert np.abs(stored - table).max() <= scale * 0.501


def test_a_table_whose_rows_are_joined_with_one_scale_for_all_is_not_clipped() -> None:
    model, feeds = embedding("y = Concat <axis = 0> (t, h)")
    rows = {**BACKEND.rules, "Concat": replace(BACKEND.rules["Concat"], same_scale=True)}
    target = replace(BACKEND, rules=rows)
    prepared = Prepared(model, Options())
    made, _ = prepared.for_target(target, Options())
    plan = make_plan(made, target)
    statistics = onnxq.calibrate(model, feeds)
    numbers = choose_numbers(made, plan, statistics)
    assert plan.root(plan.by_name["table"]).tensor == "y"
    assert numbers["table"] == numbers["t"] == numbers["h"] == numbers["y"]
    table = constant_array(made.graph.initializers["table"])
    assert table is not None and float(numbers["y"].hi - numbers["y"].lo) >= np.ptp(table) * 0.99


def test_what_is_read_back_still_ties_rows_to_their_table(tmp_path: Path) -> None:
    model, feeds = embedding()
    onnxq.quantize(model, feeds, backend="qnn", output=tmp_path / "q.onnx")
    assert onnxq.read(tmp_path / "q.onnx", backend="qnn").plan.by_name["t"].tied_to == "table"


@pytest.mark.parametrize("mask", [-np.inf, -3.4e38])
@pytest.mark.parametrize(("masked", "usable"), [(1, True), (2, True), (3, False), (4, False)])
def test_a_tensor_with_mask_values_in_most_samples_has_no_range(mask: float, masked: int, usable: bool) -> None:
    model = build("(float[2, 8] x) => (float[2, 8] y) { y = MatMul (x, w) }", w=normal(8, 8))
    feeds = images(2, 8, samples=4)
    for feed in feeds[:masked]:
        feed["x"][0, 0] = mask
    statistics = onnxq.calibrate(model, feeds)
    prepared, _ = Prepared(model, Options()).for_target(backend_named("onnxruntime"), Options())
    bad = unusable_tensors(make_plan(prepared, backend_named("onnxruntime"), ALL), statistics)
    assert ("x" in bad) != usable
    assert usable or "holds mask values" in bad["x"]


def test_numbers_that_all_readers_saturate_take_no_room() -> None:
    """A convolution goes far below where the Elu behind it is -1: its grid holds what the Elu tells apart."""
    model = build(
        """(float[1, 4, 8, 8] x) => (float[1, 8, 8, 8] y) {
            c = Conv (x, w, b)
            t = Transpose <perm = [0, 2, 3, 1]> (c)
            y = Elu (t)
        }""",
        w=normal(8, 4, 1, 1, scale=1.0),
        b=f32([-500, -300, -200, 0, 0, 0, 0, 0]),
    )
    feeds = [{"x": normal(1, 4, 8, 8, seed=k, scale=1.0)} for k in range(8)]
    result = onnxq.quantize(model, feeds, options=Options(include=("Conv",)))
    assert verified_sqnr(result) > 30
    wide = onnxq.quantize(model, feeds, options=Options(include=("Conv",), range="minmax"))
    (site,) = (s for s in wide.plan.sites if s.source == "c" and s.tied_to is None)
    assert float(wide.qparams[site.name].scale) > 1.5, "minmax holds all there is"


def test_what_one_reader_saturates_of_several_tensors_with_one_scale_is_kept_for_the_others() -> None:
    """Only a Relu reads what a Concat makes, but its input has the same scale, and another reader."""
    model = build(
        """(float[1, 12] x) => (float[12, 5] y, float[2, 12] z) {
            c = Concat <axis = 0> (x, x)
            z = Relu (c)
            t = Transpose <perm = [1, 0]> (x)
            y = Gemm (t, w)
        }""",
        w=normal(1, 5, scale=1.0),
    )
    feeds = [{"x": normal(1, 12, seed=k, scale=1.0)} for k in range(8)]
    made = onnxq.quantize(model, feeds, backend="litert", options=Options(format="qdq", placement="all"))
    assert made.qparams["x"].scale == made.qparams["c"].scale and float(made.qparams["x"].lo) < -1.5
    assert made.verification is not None and made.verification.outputs["y"].sqnr > 30
