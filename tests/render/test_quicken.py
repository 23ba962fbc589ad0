"""Renderings made quicker to run: the same numbers bit for bit, in fewer operators."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxq
from onnxq import Options
from onnxq.ort.session import Session
from onnxq.render.quicken import quicken
from tests.models import build, images, normal


def net() -> onnx.ModelProto:
    return build(
        """(float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] z) {
            c = Conv <pads = [1, 1, 1, 1]> (x, w, b)
            r = Relu (c)
            d = Conv (r, v, e)
            z = Add (d, r)
        }""",
        w=normal(4, 4, 3, 3),
        b=normal(4, seed=1),
        v=normal(4, 4, 1, 1, seed=2),
        e=normal(4, seed=3),
    )


def quantized(backend: str, **options: object) -> onnxq.Quantized:
    return onnxq.quantize(net(), images(1, 4, 8, 8), backend=backend, options=Options(**options))  # type: ignore[arg-type]


def ops(model: ir.Model) -> set[tuple[str, str]]:
    return {(node.domain, node.op_type) for node in model.graph}


@pytest.mark.parametrize("backend", ["ncnn", "nnie", "ppl", "ppl_cuda", "snpe", "stpu", "tengine"])
def test_bit_equal_to_what_is_rendered(backend: str) -> None:
    q = quantized(backend)
    written, quick = Session(q.rendered(), optimize=False), Session(q.simulated(), optimize=False)
    fused = Session(q.simulated(), fuse_quantizers=False)
    for feeds in images(1, 4, 8, 8, seed=4):
        expected = written.run(feeds)
        got = quick.run(feeds)
        assert list(got) == list(expected) == ["z"]
        np.testing.assert_array_equal(got["z"], expected["z"])
        apart = np.abs(fused.run(feeds)["z"] - expected["z"])
        step = max(float(q.qparams[s.name].scale) for s in q.plan.sites if s.role == "activation")
        # fused, sums are added up in another order: one that lies between two integers may be rounded to either
        assert (apart > 1e-5).mean() < 0.01 and apart.max() < 3 * step
    assert {domain for domain, _ in ops(q.rendered())} == {"", "onnxq"}
    assert q.is_simulated


def test_whole_grids_become_pairs_and_constants_are_held() -> None:
    q = quantized("snpe")
    model = q.simulated()
    assert {op for _, op in ops(model)} == {"QuantizeLinear", "DequantizeLinear", "Conv", "Relu", "Add"}
    assert not any(tensor.startswith("w_") and "scale" in tensor for tensor in model.graph.initializers)
    assert ("onnxq", "FakeQuantize") in ops(q.rendered()), "what is rendered stays as it is"


def test_16_bits_below_opset_21_are_of_onnxruntimes_own_domain() -> None:
    model = quantized("ppl").simulated()
    assert ("com.microsoft", "QuantizeLinear") in ops(model) and model.opset_imports["com.microsoft"] == 1


def test_a_part_of_a_grid_stays_a_function() -> None:
    q = quantized("academic", act_bits=6)
    model = q.rendered()
    expected = Session(model, optimize=False)
    quick = model.clone()
    quicken(quick)
    assert sum(node.op_type == "FakeQuantize" for node in quick.graph) == 1, "that of r: x has 8 bits"
    for feeds in images(1, 4, 8, 8, seed=4):
        np.testing.assert_array_equal(Session(quick, optimize=False).run(feeds)["z"], expected.run(feeds)["z"])


def test_what_is_the_artifact_is_run_as_it_is() -> None:
    q = quantized("academic")
    assert not q.is_simulated
    assert ops(q.simulated()) == ops(q.rendered())


def test_a_division_of_zero_by_zero_is_still_seen() -> None:
    """Both are rounded to 0: a NaN, which a code would hide."""
    model = build("(float[1, 4] x) => (float[1, 4] y, float[1, 4] z) { z = Abs (x)\n y = Div (x, x) }")
    feeds = [{"x": np.array([[1e-4, 1.0, -3.0, 3.0]], np.float32)} for _ in range(2)]
    q = onnxq.quantize(model, feeds, backend="snpe", options=Options(placement="all"))
    simulated = q.simulated()
    assert {op for _, op in ops(simulated)} >= {"QuantizeLinear", "FakeQuantize"}, "z has no division in front"
    for one in (simulated, q.rendered()):
        got = Session(one, optimize=False).run(feeds[0])
        assert np.isnan(got["y"][0, 0]) and np.isfinite(got["z"]).all()
    assert q.verification is not None
    assert any(w.startswith("output 'y' has -inf dB") for w in q.verification.warnings)


@pytest.mark.parametrize(("divisor", "left"), [(6.0, 0), (0.0, 1)])
def test_a_division_by_a_constant_other_than_zero_hides_nothing(divisor: float, left: int) -> None:
    model = build("(float[1, 4] x) => (float[1, 4] y) { y = Div (x, d) }", d=np.array([divisor, 2, 3, 4], np.float32))
    rendered = onnxq.quantize(
        model, [{"x": np.zeros((1, 4), np.float32)}], backend="snpe", options=Options(placement="all")
    ).rendered()
    quick = rendered.clone()
    quicken(quick)
    assert sum(node.op_type == "FakeQuantize" for node in quick.graph) == left


def test_a_normalization_of_equal_numbers_is_still_seen() -> None:
    """All are rounded to 1: a variance of 0, and a NaN without an epsilon."""
    model = build(
        "(float[1, 4] x) => (float[1, 4] y) { y = LayerNormalization <epsilon = 0.0> (x, s) }", s=np.ones(4, np.float32)
    )
    feeds = [{"x": np.array([[1.0015, 0.9997, 0.9997, 1.0015]], np.float32)}] * 2
    q = onnxq.quantize(model, feeds, backend="snpe", options=Options(placement="all"))
    assert len(q.plan.quantized) == 1
    for one in (q.simulated(), q.rendered()):
        assert np.isnan(Session(one, optimize=False).run(feeds[0])["y"]).all()
