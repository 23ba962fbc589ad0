"""Branches of a Concat against noise computed by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxq
from onnxq import Options
from onnxq.calibration.statistics import Statistics
from onnxq.deciding.branches import lost_branches
from onnxq.ort.session import Session
from onnxq.qparams import fake_quantize
from onnxq.ranged import from_range
from tests.models import build, feeds_for, normal

ALL = Options(placement="all", range="minmax")


def concat(ratio: float) -> onnx.ModelProto:
    return build(
        """(float[64, 16] x) => (float[64, 8] y) {
            [big] a = MatMul (x, w)
            [small] b = MatMul (x, v)
            [join] c = Concat <axis = 1> (a, b)
            [read] y = MatMul (c, u)
        }""",
        w=normal(16, 16),
        v=(normal(16, 16, seed=1) / ratio).astype(np.float32),
        u=normal(32, 8, seed=2),
    )


def statistics(model: onnx.ModelProto) -> Statistics:
    return onnxq.calibrate(model, feeds_for(model))


def test_the_noise_is_what_quantizing_the_tensor_gives() -> None:
    model = concat(300.0)
    known = statistics(model)
    q = onnxq.quantize(model, statistics=known, options=ALL)
    (lost,) = lost_branches(q.model, q.plan, q.qparams, known)
    assert (lost.concat, lost.branch, lost.nodes) == ("join", "b", ("join", "read"))
    weight = (normal(16, 16, seed=1) / 300.0).astype(np.float32)
    b = np.concatenate([feed["x"] @ weight for feed in feeds_for(model)])
    for qparams, said in ((q.qparams["c"], lost.sqnr), (from_range(b.min(), b.max(), q.qparams["c"].spec), lost.own)):
        noise = np.square(fake_quantize(b, qparams).astype(np.float64) - b).sum()
        measured = 10 * np.log10(np.square(b.astype(np.float64)).sum() / noise)
        assert said == pytest.approx(measured, abs=1.0)  # statistics know values to 1/128 of an octave
    assert "'b'" in str(lost) and "'join'" in str(lost)


@pytest.mark.parametrize("ratio", [1.0, 5.0])
def test_branches_that_are_near_each_other_are_fine(ratio: float) -> None:
    model = concat(ratio)
    known = statistics(model)
    q = onnxq.quantize(model, statistics=known, options=ALL)
    assert not lost_branches(q.model, q.plan, q.qparams, known)


def test_a_branch_of_zeros_is_not_lost() -> None:
    model = concat(1.0)
    weight = next(t for t in model.graph.initializer if t.name == "v")
    weight.CopyFrom(onnx.numpy_helper.from_array(np.zeros((16, 16), np.float32), "v"))
    known = statistics(model)
    q = onnxq.quantize(model, statistics=known, options=ALL)
    assert not lost_branches(q.model, q.plan, q.qparams, known)


def test_of_a_float_concat_the_readers_are_named() -> None:
    model = concat(300.0)
    known = statistics(model)
    q = onnxq.quantize(model, statistics=known, options=replace(ALL, exclude=("join",)))
    assert "join" not in q.plan.quantized and "read" in q.plan.quantized
    assert [lost.nodes for lost in lost_branches(q.model, q.plan, q.qparams, known)] == [("read",)]


def test_what_its_own_scale_would_not_hold_either_is_not_lost() -> None:
    model = build(
        "(float[64, 256] x, float[64, 256] z) => (float[64, 8] y) { c = Concat <axis = 1> (x, z)\n y = MatMul (c, u) }",
        u=normal(512, 8),
    )
    feeds = feeds_for(model)
    for name in ("x", "z"):
        feeds[0][name][0, 0] = 600.0  # the others lie within two steps of an 8-bit scale
    known = onnxq.calibrate(model, feeds)
    q = onnxq.quantize(model, statistics=known, options=ALL)
    noise = np.concatenate([fake_quantize(f["x"], q.qparams["c"]).astype(np.float64) - f["x"] for f in feeds])
    signal = sum(float(np.square(f["x"].astype(np.float64)).sum()) for f in feeds)
    assert 10 * np.log10(signal / np.square(noise).sum()) < 15, "poor"
    assert not lost_branches(q.model, q.plan, q.qparams, known)


@pytest.mark.parametrize(("ratio", "warned"), [(3000.0, True), (3.0, False)])
def test_a_scale_of_the_inputs_alone_loses_a_branch_too(ratio: float, warned: bool) -> None:
    model = build(
        """(float[1, 4, 8, 8] x) => (float[1, 8, 8, 8] y) {
            [big] a = Conv (x, w)
            [small] b = Conv (x, v)
            [join] y = Concat <axis = 1> (a, b)
        }""",
        w=normal(4, 4, 1, 1),
        v=(normal(4, 4, 1, 1, seed=1) / ratio).astype(np.float32),
    )
    q = onnxq.quantize(model, feeds_for(model), backend="nnie")
    assert "join" in q.plan.quantized and "y" not in {site.tensor for site in q.plan.sites}
    assert q.verification is not None
    found = [text for text in q.verification.warnings if "branch 'b' of Concat 'join'" in text]
    assert len(found) == warned
    assert all("cut the model in front of it" in text and "--exclude" not in text for text in found)
    small = q.rendered()  # both branches come out of one tensor: the figure is that of the second half
    exact, got = (np.concatenate([Session(m).run(f)["y"][:, 4:] for f in feeds_for(model)]) for m in (q.model, small))
    sqnr = 10 * np.log10(np.square(exact).sum() / np.square(got - exact).sum())
    assert (sqnr < 15) == warned


def test_many_branches_of_one_concat_are_one_warning() -> None:
    """A cost volume: as many correlations as there are shifts, beside features that are larger."""
    small = "".join(f"s{k} = Mul (x, k{k})\n" for k in range(9))
    names = ", ".join(f"s{k}" for k in range(9))
    constants: dict[str, Any] = {f"k{k}": np.array([0.001 + 0.0001 * k], np.float32) for k in range(9)}
    constants["w"] = normal(4, 40, 1, 1)
    model = build(
        f"(float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) {{ {small} [join] c = Concat <axis = 1> (x, {names})\n"
        "[last] y = Conv (c, w) }",
        **constants,
    )
    q = onnxq.quantize(model, feeds_for(model), backend="tengine")
    assert q.verification is not None
    (found,) = (text for text in q.verification.warnings if "of Concat 'join'" in text)
    assert found.startswith("branches 's0', 's1', 's2' and 6 more of Concat 'join' keep ")
    assert " dB to " in found and found.endswith(" with their own: tengine has one scale for all that a Concat joins")


def test_a_chip_without_float_gets_the_concat_in_16_bits() -> None:
    model = concat(3000.0)
    feeds = feeds_for(model)
    made = onnxq.quantize(model, feeds, backend="qnn")
    bits = {site.tensor: site.spec.bits for site in made.plan.sites if site.role == "activation"}
    assert bits["c"] == 16 and bits["x"] == 8
    assert any("16 bits for Concat 'join'" in note and "'b'" in note for note in made.notes)
    assert made.verification is not None and not any("branch" in text for text in made.verification.warnings)
    asked = onnxq.quantize(model, feeds, backend="qnn", options=Options(act_bits=8))
    assert {s.spec.bits for s in asked.plan.sites if s.role == "activation"} == {8}, "bits asked for stay"
    assert asked.verification is not None
    (told,) = (text for text in asked.verification.warnings if "branch" in text)
    assert "act_bits=16' gives it finer steps" in told


def test_a_table_gets_16_bits_for_all_that_the_concat_joins(tmp_path: Path) -> None:
    model = concat(3000.0)
    made = onnxq.quantize(model, feeds_for(model), backend="snpe", output=tmp_path / "m.onnx")
    assert made.verification is not None and not any("branch" in text for text in made.verification.warnings)
    table = json.loads((tmp_path / "m.encodings").read_text())["activation_encodings"]
    assert {e["name"]: e["bw"] for e in table} == {"x": 8, "a": 16, "b": 16, "c": 16, "y": 8}
    known = statistics(model)
    back = onnxq.read(made.fake_quantize(), backend="snpe")
    assert not lost_branches(back.model, back.plan, back.qparams, known)


def detector(behind: str) -> onnx.ModelProto:
    """Boxes of up to some 2000 beside scores, joined at the end."""
    return build(
        f"""(float[1, 3, 8, 8] x) => (float[1, 8, N] y) {{
            [first] f = Conv <pads = [1, 1, 1, 1]> (x, w)
            [act] r = Relu (f)
            [big] a = Conv (r, u)
            [small] s = Conv (r, v)
            [join] c = Concat <axis = 1> (a, s)
            {behind}
        }}""",
        w=normal(8, 3, 3, 3),
        u=200 * normal(4, 8, 1, 1, seed=1),
        v=0.1 * normal(4, 8, 1, 1, seed=2),
        z=normal(8, 8, 1, 1, seed=3),
        shape=np.array([1, 8, -1]),
        two=np.full((8, 1), 2.0, np.float32),
    )


TAIL = "[flat] g = Reshape (c, shape)\n [twice] y = Mul (g, two)"
LAYER = "[last] d = Conv (c, z)\n [flat] y = Reshape (d, shape)"
POOL = "[pool] g = AveragePool <kernel_shape = [2, 2]> (c)\n [flat] y = Reshape (g, shape)"


def test_where_a_host_computes_the_end_of_a_model_it_stays_float() -> None:
    model = detector(TAIL)
    made = onnxq.quantize(model, feeds_for(model), backend="vitis")
    assert set(made.plan.quantized) == {"first", "big", "small"}
    kept = {k.node: k.reason for k in made.plan.kept_float}
    assert "branch 's'" in kept["join"] and kept["twice"] == "what it reads stays float from Concat 'join' on"
    assert made.verification is not None and not any("branch" in text for text in made.verification.warnings)
    for feed in feeds_for(model):
        want, got = (Session(m).run(feed)["y"][:, 4:] for m in (made.model, made.rendered()))
        assert 10 * np.log10(np.square(want).sum() / np.square(want - got).sum()) > 15


@pytest.mark.parametrize("behind", [LAYER, POOL])
def test_a_concat_in_front_of_a_layer_or_of_what_a_device_computes_in_its_own_way_is_not_the_end(behind: str) -> None:
    model = detector(behind)
    made = onnxq.quantize(model, feeds_for(model), backend="vitis")
    assert "join" in made.plan.quantized
    assert made.verification is not None
    assert any("branch 's'" in text and "--exclude 'join'" in text for text in made.verification.warnings)


@pytest.mark.parametrize(("behind", "cut"), [(TAIL, True), (LAYER, False)])
@pytest.mark.parametrize("backend", ["tengine", "nnie", "stpu"])
def test_where_all_is_integers_only_a_cut_at_the_end_is_advised(backend: str, behind: str, cut: bool) -> None:
    model = detector(behind)
    made = onnxq.quantize(model, feeds_for(model), backend=backend)
    assert made.verification is not None
    (told,) = (text for text in made.verification.warnings if "branch 's'" in text)
    assert ("onnx.utils.extract_model" in told) == cut and "--exclude" not in told
