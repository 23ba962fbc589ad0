"""Layers that are quantized, and that a runtime computes in float."""

from __future__ import annotations

from pathlib import Path

import pytest

import onnxq
from onnxq import Options
from onnxq.measuring.run_in_float import run_in_float
from onnxq.plan import Plan
from tests.models import build, feeds_for, normal


@pytest.fixture(scope="module")
def plan() -> Plan:
    model = build(
        """(float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) {
            [one] a = Conv (x, w)
            [two] b = Conv (a, v)
            [sum] y = Add (a, b)
        }""",
        w=normal(4, 4, 1, 1),
        v=normal(4, 4, 1, 1, seed=1),
    )
    return onnxq.plan(model, options=Options(placement="all"))


@pytest.mark.parametrize("line", ["Convolution two/WithoutBiases,two [f32, brgconv]", "Conv2d two", "convolution two"])
def test_they_are_named(plan: Plan, line: str) -> None:
    (said,) = run_in_float(plan, "Runtime", ["Convolution one [u8, jit]"], [line, "Add sum"])
    assert said.startswith("a quantized layer runs in float in Runtime") and said.endswith(": two")
    (said,) = run_in_float(plan, "Runtime", [], ["Conv one", line])
    assert said.startswith("2 quantized layers run in float") and said.endswith(": one, two")


def test_nothing_is_said_of_others(plan: Plan) -> None:
    assert not run_in_float(plan, "Runtime", ["Conv one", "Conv two"], ["Add sum", "Reorder two"])
    assert not run_in_float(plan, "Runtime", [], ["Sub other", "one two_more"])
    assert not run_in_float(plan, "Runtime", [], [])


def test_verify_says_so(tmp_path: Path) -> None:
    """onnxruntime has no kernels for 16-bit activations."""
    model = build("(float[1, 8, 6, 6] x) => (float[1, 8, 6, 6] y) { [m] y = Conv (x, w) }", w=normal(8, 8, 1, 1))
    options = Options(placement="all", act_bits=16)
    onnxq.quantize(model, feeds_for(model), output=tmp_path / "q.onnx", options=options)
    found = onnxq.verify(tmp_path / "q.onnx", feeds_for(model))
    assert [remark for remark in found.remarks if "run" in remark and remark.endswith(": m")], found
