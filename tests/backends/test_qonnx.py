"""QONNX and hls4ml: what FINN and hls4ml ask of grids, and models that are deployed to them and from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxq
from onnxq import Options
from onnxq.errors import OptionError
from tests.models import build, f32, feeds_for, images, normal
from tests.targets import GRAPHS


def net() -> onnx.ModelProto:
    """A Relu that is moved, a mean of what is not negative, two layers."""
    return build(
        """(float[1, 3, 8, 8] x) => (float[1, 5] y) {
            a = Conv (x, v, b)
            r = Relu (a)
            p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)
            c = Conv (p, w)
            s = Relu (c)
            m = GlobalAveragePool (s)
            f = Flatten (m)
            y = Gemm (f, u, d)
        }""",
        v=normal(4, 3, 3, 3),
        b=normal(4, seed=5, scale=0.1),
        w=normal(4, 4, 1, 1, seed=1),
        u=normal(4, 5, seed=2),
        d=normal(5, seed=3, scale=0.1),
    )


FEEDS = images(1, 3, 8, 8)


def numbers(backend: str, **options: Any) -> dict[str, Any]:
    made = onnxq.quantize(net(), FEEDS, backend=backend, options=Options(**options))
    return {site.tensor: made.qparams[site.name] for site in made.plan.sites}


def test_grids_are_those_that_finn_takes() -> None:
    """Unsigned behind a Relu, moved or not, and nowhere else; zero points 0; weights narrow."""
    found = numbers("qonnx", weight_bits=4, act_bits=3)
    unsigned = {name for name, numbers in found.items() if not numbers.spec.signed}
    assert unsigned == {"r", "p", "s"}
    assert not any(numbers.zero_point.any() for numbers in found.values())
    assert "b" not in found and "d" not in found and "y" not in found
    assert {found[name].spec.bits for name in ("x", "r", "m")} == {3}
    assert {(found[name].spec.bits, found[name].spec.narrow_range) for name in ("v", "w", "u")} == {(4, True)}
    assert [found[name].scale.shape for name in ("v", "w", "u")] == [(4,), (4,), (5,)]


def test_grids_are_those_that_hls4ml_has_types_for() -> None:
    found = numbers("hls4ml", weight_bits=6, act_bits=6)
    assert all(numbers.scale.shape == () and np.frexp(numbers.scale)[0] == 0.5 for numbers in found.values())
    assert {found[name].spec.bits for name in ("b", "d")} == {16}
    assert {name for name, numbers in found.items() if not numbers.spec.signed} == {"r", "p", "s", "m", "f"}


def test_arithmetic_with_constants_is_left_to_thresholds() -> None:
    model = build(
        """(float[1, 4, 8] x) => (float[1, 4, 8] y) {
            m = MatMul (x, w)  [bias] b = Add (m, c)  r = Relu (b)
            n = MatMul (r, v)  [shortcut] y = Add (n, r)
        }""",
        w=normal(8, 8),
        c=normal(8, seed=1),
        v=normal(8, 8, seed=2),
    )
    plan = onnxq.plan(model, backend="qonnx")
    assert "shortcut" in plan.quantized and "bias" not in plan.quantized
    assert {site.tensor for site in plan.sites} == {"x", "w", "r", "v", "n"}


@pytest.mark.parametrize("backend", ["qonnx", "hls4ml"])
def test_zero_points_are_refused(backend: str) -> None:
    with pytest.raises(OptionError, match="has no zero points"):
        onnxq.plan(net(), backend=backend, options=Options(symmetric=False))


def given(**options: Any) -> onnxq.Quantized:
    return onnxq.quantize(net(), FEEDS, backend="onnxruntime", options=Options(placement="all", **options))


def test_a_model_with_zero_points_keeps_its_numbers_and_says_so(tmp_path: Path) -> None:
    source = given()
    made = onnxq.deploy(source.rendered(), backend="qonnx", output=tmp_path / "q.onnx")
    was = {site.tensor: source.qparams[site.name] for site in source.plan.sites}
    moved = []
    for site in made.plan.sites:
        now, old = made.qparams[site.name], was[site.tensor]
        assert np.array_equal(now.scale, old.scale)
        for end in ("lo", "hi"):
            assert np.array_equal(getattr(now, end), getattr(old, end)) or site.role == "weight"
        moved += [site.tensor] if site.role == "activation" and old.zero_point not in (0, 128) else []
    assert moved == ["x"]
    assert any("1 tensor with a zero point, which FINN refuses" in note and "'x'" in note for note in made.notes)
    again = onnxq.read(tmp_path / "q.onnx", backend="qonnx")
    assert again.qparams["x"].zero_point != 0 and again.qparams["x"].scale == was["x"].scale


def test_symmetric_uint8_has_zero_point_0_in_the_file(tmp_path: Path) -> None:
    """Its numbers are those of int8, and so it is written."""
    source = given(symmetric=True)
    made = onnxq.deploy(source.rendered(), backend="qonnx", output=tmp_path / "q.onnx")
    assert not any("zero point" in note for note in made.notes)
    back = onnxq.read(tmp_path / "q.onnx", backend="qonnx")
    assert all(not back.qparams[site.name].zero_point.any() for site in back.plan.sites)
    assert back.qparams["x"].spec.signed and back.qparams["x"].scale == made.qparams["x"].scale


def test_other_scales_than_powers_of_two_are_refused_by_name() -> None:
    with pytest.raises(onnxq.OnnxqError, match="'x': its scale is not a power of two"):
        onnxq.deploy(given(symmetric=True).rendered(), backend="hls4ml")


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "qnn", "litert"])
def test_what_is_written_is_a_model_for_other_targets(backend: str, tmp_path: Path) -> None:
    onnxq.quantize(net(), FEEDS, backend="qonnx", output=tmp_path / "q.onnx")
    made = onnxq.deploy(tmp_path / "q.onnx", backend=backend)
    assert "Conv" in made.plan.quantized.values()
    assert made.verification is not None and made.verification.against_source is not None
    worst = made.verification.against_source.worst
    assert worst is not None and worst[1].sqnr > 40


@pytest.mark.parametrize("backend", ["qonnx", "hls4ml"])
def test_what_is_read_is_written_as_it_was(backend: str, tmp_path: Path) -> None:
    """As finetune does, of what quantize has written."""
    onnxq.quantize(net(), FEEDS, backend=backend, output=tmp_path / "q.onnx", options=Options(weight_bits=4))
    onnxq.read(tmp_path / "q.onnx", backend=backend).save(tmp_path / "again.onnx")
    ops = [[node.op_type for node in onnx.load(tmp_path / name).graph.node] for name in ("q.onnx", "again.onnx")]
    assert ops[0].count("Quant") == ops[1].count("Quant") > 5 and "FakeQuantize" not in ops[1]


def test_names_do_not_grow_from_one_deployment_to_the_next(tmp_path: Path) -> None:
    """A weight that alone is rounded keeps its name, also one that two layers share."""
    shared = """(float[1, 3, 8, 8] x, float[1, 3, 8, 8] z) => (float[1, 4, 8, 8] y) {
        a = Conv (x, w)
        b = Conv (z, w)
        y = Add (a, b)
    }"""
    model = build(shared, w=normal(4, 3, 1, 1))
    onnxq.quantize(model, feeds_for(model), backend="qonnx", output=tmp_path / "0.onnx")
    for step in range(2):
        onnxq.deploy(tmp_path / f"{step}.onnx", backend="qonnx", output=tmp_path / f"{step + 1}.onnx")
    names = [{t.name for t in onnx.load(tmp_path / f"{step}.onnx").graph.initializer} for step in range(3)]
    assert names[0] == names[1] == names[2] and "w" in names[0]


def test_check_names_what_hls4ml_does_not_read() -> None:
    said = {finding.what for finding in onnxq.check(GRAPHS["upsampling"](), backend="hls4ml")}
    assert any("no ConvTranspose" in what for what in said) and any("no HardSwish" in what for what in said)
    assert not any("hls4ml" in finding.what for finding in onnxq.check(net(), backend="hls4ml"))


def test_a_clip_counts_as_a_relu() -> None:
    model = build(
        "(float[1, 3] x) => (float[1, 4] y) { a = MatMul (x, w)\n c = Clip (a, low, high)\n y = MatMul (c, v) }",
        w=normal(3, 4),
        v=normal(4, 4, seed=1),
        low=f32(0),
        high=f32(6),
    )
    (told,) = (finding for finding in onnxq.check(model, backend="hls4ml") if "Clip" in finding.what)
    assert "as a Relu where the quantizer" in told.what


@pytest.mark.parametrize(("high", "refused"), [(6.0, True), (100.0, False)])
def test_a_clip_is_warned_of_where_it_becomes_no_relu(high: float, refused: bool, tmp_path: Path) -> None:
    model = build(
        "(float[1, 3, 8, 8] x) => (float[1, 4, 8, 8] y) { a = Conv (x, w) r = Clip (a, low, high) y = Conv (r, v) }",
        w=normal(4, 3, 1, 1, scale=4.0),
        v=normal(4, 4, 1, 1, seed=1),
        low=f32(0),
        high=f32(high),
    )
    made = onnxq.quantize(model, feeds_for(model), backend="hls4ml", output=tmp_path / "q.onnx")
    assert made.verification is not None
    onnxq.deploy(tmp_path / "q.onnx", backend="hls4ml", output=tmp_path / "d.onnx")
    warned = [text for text in made.verification.warnings if "hls4ml does not read" in text]
    ops = [node.op_type for node in onnx.load(tmp_path / "q.onnx").graph.node]
    assert bool(warned) == refused == ("Clip" in ops) != ("Relu" in ops)
