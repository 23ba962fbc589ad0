"""Concats that share a scale through what several of them read."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import onnxq
from onnxq import Options
from onnxq.deciding.branches import lost_branches
from onnxq.deciding.ties import concats_by_tie, crowded_concats
from tests.models import build, normal, verified_sqnr

SIDE = 12


def pair(channels: int = 4) -> onnx.ModelProto:
    """An encoder of two images, a refiner of the first image and features."""
    return build(
        f"""(float[1, {channels}, {SIDE}, {SIDE}] a, float[1, {channels}, {SIDE}, {SIDE}] b,
             float[1, {channels}, {SIDE}, {SIDE}] z) => (float[1, 8, {SIDE}, {SIDE}] y) {{
            [images] c = Concat <axis = 1> (a, b)
            [encoder] e = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (c, w)
            [features] d = Concat <axis = 1> (a, z)
            [refiner] r = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (d, v)
            y = Add (e, r)
        }}""",
        w=normal(8, 2 * channels, 3, 3),
        v=normal(8, 2 * channels, 3, 3, seed=1, scale=0.02),
    )


def feeds(size: float, *, light: float = 0.0) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    shape = (1, 4, SIDE, SIDE)
    images = [(light + rng.uniform(-1, 1, (2, *shape))).astype(np.float32) for _ in range(6)]
    return [{"a": a, "b": b, "z": (size * rng.uniform(-1, 1, shape)).astype(np.float32)} for a, b in images]


@pytest.mark.parametrize("backend", ["openvino", "tensorrt"])
def test_images_do_not_get_the_scale_of_features_that_another_concat_reads_with_one_of_them(backend: str) -> None:
    tied = onnxq.quantize(
        pair(), feeds(12.0, light=1.0), backend=backend, options=Options(effort="fast", reduce_range=True)
    )
    assert {"images", "features"} <= tied.plan.quantized.keys() and tied.qparams["c"].scale > 0.09
    assert verified_sqnr(tied) < 36, "no branch is lost, but what counts of it"
    result = onnxq.quantize(pair(), feeds(12.0, light=1.0), backend=backend, options=Options(reduce_range=True))
    assert verified_sqnr(result) > verified_sqnr(tied) + 6
    assert {"encoder", "refiner"} <= result.plan.quantized.keys(), "the layers stay in integers"
    kept = {k.node: k.reason for k in result.plan.kept_float}
    assert len(kept.keys() & {"images", "features"}) == 1, "one of them in float cuts the tie"
    assert any(why.startswith("one scale for all that it reads leaves output 'y'") for why in kept.values())
    assert result.qparams["c"].scale < 0.03


@pytest.mark.parametrize("size", [2.0, 12.0])
def test_a_tie_is_crowded_where_a_scale_of_its_own_has_four_times_finer_steps(size: float) -> None:
    model, data = pair(), feeds(size)
    known = onnxq.calibrate(model, data)
    q = onnxq.quantize(model, statistics=known, backend="openvino", options=Options(effort="fast"))
    (names,) = [[node.name for node in concats] for concats in concats_by_tie(q.model, q.plan).values()]
    assert names == ["images", "features"]
    assert crowded_concats(q.model, q.plan, q.qparams, known) == (names if size > 4 else [])


def test_a_tensor_read_in_two_layouts_ties_no_concat() -> None:
    """Both have one scale, as they hold the same numbers."""
    text = "(float[8, 8] x) => (float[8, 8] y) { a = MatMul (x, w)\n t = Transpose (a)\n y = Add (a, t) }"
    model = build(text, w=normal(8, 8))
    q = onnxq.quantize(model, [{"x": normal(8, 8)}], backend="qnn", options=Options(effort="fast", placement="all"))
    assert {"Add", "Transpose"} <= set(q.plan.quantized.values())
    assert concats_by_tie(q.model, q.plan) == {}


def test_what_is_not_crowded_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxq.deciding.what_hurts.costly_in_integers", None)
    assert {"images", "features"} <= onnxq.quantize(pair(), feeds(2.0), backend="openvino").plan.quantized.keys()


def test_a_branch_that_another_concat_drowns_is_freed_by_that_one_in_float() -> None:
    model, data = pair(), feeds(150.0)
    known = onnxq.calibrate(model, data)
    everything = Options(placement="all", range="minmax")
    q = onnxq.quantize(model, statistics=known, backend="openvino", options=everything)
    lost = {(branch.concat, branch.branch): branch.nodes for branch in lost_branches(q.model, q.plan, q.qparams, known)}
    assert lost["images", "a"] == lost["images", "b"] == ("features",)
    assert lost["features", "a"] == ("features", "refiner"), "whose own range is too wide for it"
    result = onnxq.quantize(model, statistics=known, backend="openvino", options=Options(effort="fast", range="minmax"))
    assert {"images", "encoder"} <= result.plan.quantized.keys() and "features" not in result.plan.quantized
