"""Results of 8-bit activations that are of no use, on targets that have 16 and no float in between."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

import onnxq
from onnxq import Options
from onnxq.plan import Site
from tests.models import build, normal

SAID = "activations have 16 bits"


def lifted(function: str = "") -> onnx.ModelProto:
    """What is added to numbers of about 4 is taken off again."""
    text = """(float[8, 16] x, float[8, 1] lift) => (float[8, 8] y) {
        [layer] a = MatMul (x, w)
        [add] b = Add (a, lift)
        [take] d = Sub (b, lift)
        FUNCTION
        [last] y = MatMul (LAST, v)
    }"""
    text = text.replace("FUNCTION", f"[function] e = {function} (d)" if function else "")
    text = text.replace("LAST", "e" if function else "d")
    return build(text, w=normal(16, 16), v=normal(16, 8, seed=1))


def feeds(lift: float) -> list[dict[str, NDArray[np.float32]]]:
    """Samples; with 8 bits the sum has steps of ``lift`` / 255."""
    return [{"x": normal(8, 16, seed=n), "lift": np.abs(normal(8, 1, seed=100 + n, scale=lift))} for n in range(16)]


def activations(q: onnxq.Quantized) -> list[Site]:
    return [site for site in q.plan.sites if site.role == "activation"]


def sqnr(q: onnxq.Quantized) -> float:
    assert q.verification is not None
    return min(errors.sqnr for errors in q.verification.outputs.values())


@pytest.mark.parametrize("backend", ["qnn", "snpe"])
def test_where_8_bits_leave_nothing_all_activations_have_16(backend: str) -> None:
    model = lifted()
    q = onnxq.quantize(model, feeds(2000.0), backend=backend)
    assert {site.spec.bits for site in activations(q)} == {16}
    assert {site.spec.bits for site in q.plan.sites if site.role == "weight"} == {8}
    assert any(SAID in hint for hint in q.hints)
    assert not any("--act-bits 16" in hint for hint in q.hints)
    asked = onnxq.quantize(model, feeds(2000.0), backend=backend, options=Options(act_bits=8))
    assert {site.spec.bits for site in activations(asked)} == {8}
    assert sqnr(asked) < 12 < 25 < sqnr(q)


@pytest.mark.parametrize("options", [Options(act_bits=8), Options(effort="fast"), Options(weight_bits=4)])
def test_a_width_asked_for_and_effort_fast_leave_it_at_8_bits(options: Options) -> None:
    model = lifted()
    q = onnxq.quantize(model, feeds(2000.0), backend="qnn", options=options)
    assert {site.spec.bits for site in activations(q)} == {8}
    assert not any(SAID in hint for hint in q.hints)


def test_a_good_result_keeps_8_bits() -> None:
    model = lifted()
    q = onnxq.quantize(model, feeds(0.5), backend="qnn")
    assert {site.spec.bits for site in activations(q)} == {8}


@pytest.mark.parametrize("backend", ["tengine", "vitis", "onnxruntime", "academic", "academic_nlp"])
def test_no_other_target_takes_16_bits(backend: str) -> None:
    model = lifted()
    q = onnxq.quantize(model, feeds(2000.0), backend=backend)
    assert {site.spec.bits for site in activations(q)} <= {8}


def test_what_the_target_has_in_8_bits_alone_stays_in_integers() -> None:
    model = lifted("PRelu")
    node = next(node for node in model.graph.node if node.name == "function")
    node.input.append("slope")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.full(16, 0.5, np.float32), "slope"))
    q = onnxq.quantize(model, feeds(2000.0), backend="qnn")
    assert "function" in q.plan.quantized
    widths = {edge.node: site.spec.bits for site in activations(q) for edge in site.readers}
    assert (widths["take"], widths["function"]) == (16, 8)


def test_a_node_that_the_user_keeps_at_8_bits_keeps_all_there_where_a_tensor_has_one_width(tmp_path: Path) -> None:
    model, options = lifted(), Options(override=(("last", onnxq.Override(act_bits=8)),))
    q = onnxq.quantize(model, feeds(2000.0), backend="snpe", options=options)
    assert {site.spec.bits for site in activations(q)} == {8}
    assert q.save(tmp_path / "m.onnx")
    q = onnxq.quantize(model, feeds(2000.0), backend="qnn", options=options)
    widths = {edge.node: site.spec.bits for site in activations(q) for edge in site.readers}
    assert (widths["take"], widths["last"]) == (16, 8)


def test_what_is_said_is_of_16_bits() -> None:
    """A Concat of which 8 bits lose a branch: neither its own 16 bits nor the loss are spoken of."""
    text = """(float[8, 16] x, float[8, 1] lift) => (float[8, 8] y) {
        [layer] a = MatMul (x, w)
        [add] b = Add (a, lift)
        [take] d = Sub (b, lift)
        [join] f = Concat <axis = 1> (d, lift)
        [last] y = MatMul (f, v)
    }"""
    second = np.vstack([normal(16, 8, seed=1), np.zeros((1, 8), np.float32)])
    model, data = build(text, w=normal(16, 16), v=second), feeds(2000.0)
    narrow, q, asked = (
        onnxq.quantize(model, data, backend="snpe", options=Options(act_bits=bits)) for bits in (8, None, 16)
    )
    assert narrow.verification is not None and "branch 'd'" in narrow.verification.warnings[0]
    assert {site.spec.bits for site in activations(q)} == {16}
    assert q.verification is not None and asked.verification is not None
    assert (q.notes, q.verification.warnings) == (asked.notes, asked.verification.warnings)


def test_16_bits_that_gain_nothing_are_left() -> None:
    """What is lost here is lost in weights: a row that nothing is fed to is ten thousand times the others."""
    model = lifted()
    weight = next(t for t in model.graph.initializer if t.name == "w")
    values = normal(16, 16)
    values[0] *= 1e4
    weight.CopyFrom(onnx.numpy_helper.from_array(values, "w"))
    samples = feeds(0.5)
    for sample in samples:
        sample["x"][:, 0] = 0.0
    q = onnxq.quantize(model, samples, backend="qnn")
    assert sqnr(q) < 12
    assert {site.spec.bits for site in activations(q)} == {8}


def test_what_neither_width_can_hold_stays_at_8_bits() -> None:
    """0 / 0 where a channel a million times as large leaves the others no step, of 16 bits either."""
    weight = np.eye(16, dtype=np.float32)
    weight[0, 0] = 1e6
    model = build("(float[8, 16] x) => (float[8, 16] y) { a = MatMul (x, w) s = Abs (a) y = Div (a, s) }", w=weight)
    samples = [{"x": normal(8, 16, seed=n)} for n in range(16)]
    q = onnxq.quantize(model, samples, backend="snpe")
    assert sqnr(q) == -np.inf
    assert {site.spec.bits for site in activations(q)} == {8}
    assert not any(SAID in hint for hint in q.hints)
