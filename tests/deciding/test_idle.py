from __future__ import annotations

import numpy as np

import onnxq
from onnxq import Options
from onnxq.notes.reasons import by_reason
from tests.models import build, images, normal


def test_a_branch_that_never_ran_is_one_reason() -> None:
    """Also for what an If inside of it holds, whatever tensor of it each node reads."""
    model = build(
        """(float[4, 8] x, bool c, bool d) => (float[4, 8] y) {
            [outer] y = If (c) <
                then_branch = yes () => (float[4, 8] t) { [taken] t = MatMul (x, w) },
                else_branch = no () => (float[4, 8] e) {
                    s = Exp (x)
                    [first] a = MatMul (s, w)
                    b = Neg (a)
                    [second] f = MatMul (b, w)
                    [inner] e = If (d) <
                        then_branch = deep () => (float[4, 8] g) { h = Abs (f)
                            [third] g = MatMul (h, w) },
                        else_branch = plain () => (float[4, 8] i) { i = Neg (f) }
                    >
                }
            >
        }""",
        w=normal(8, 8),
    )
    feeds = [{**feed, "c": np.array(True), "d": np.array(True)} for feed in images(4, 8)]
    plan = onnxq.quantize(model, feeds, options=Options(placement="compute")).plan
    assert set(plan.quantized) == {"taken"}
    said = {reason: {k.node for k in kept} for reason, kept in by_reason(plan.kept_float)}
    (reason,) = [reason for reason in said if "never ran" in reason]
    assert reason == "the else_branch of node 'outer' (If) never ran on the calibration data"
    assert said[reason] == {"first", "second", "third"}


def test_a_body_of_which_anything_ran_is_none() -> None:
    model = build(
        """(float[4, 8] x, bool c) => (float[4, 8] y) {
            y = If (c) <
                then_branch = yes () => (float[4, 8] t) { [one] t = MatMul (x, w) },
                else_branch = no () => (float[4, 8] e) { [two] e = MatMul (x, v) }
            >
        }""",
        w=normal(8, 8),
        v=normal(8, 8, seed=1),
    )
    feeds = [{**feed, "c": np.array(k % 2 == 0)} for k, feed in enumerate(images(4, 8))]
    plan = onnxq.quantize(model, feeds, options=Options(placement="compute")).plan
    assert set(plan.quantized) == {"one", "two"}


def test_a_body_that_ran_is_none_for_what_did_not_run_inside_of_it() -> None:
    model = build(
        """(float[4, 8] x, bool c, bool d) => (float[4, 8] y) {
            [outer] y = If (c) <
                then_branch = yes () => (float[4, 8] t) { [other] t = MatMul (x, w) },
                else_branch = no () => (float[4, 8] e) {
                    [ran] a = MatMul (x, v)
                    [inner] e = If (d) <
                        then_branch = deep () => (float[4, 8] g) { h = Abs (a)
                            [never] g = MatMul (h, w) },
                        else_branch = plain () => (float[4, 8] i) { i = Neg (a) }
                    >
                }
            >
        }""",
        w=normal(8, 8),
        v=normal(8, 8, seed=1),
    )
    feeds = [{**feed, "c": np.array(False), "d": np.array(False)} for feed in images(4, 8)]
    plan = onnxq.quantize(model, feeds, options=Options(placement="compute")).plan
    said = {kept.node: kept.reason for kept in plan.kept_float if "never ran" in kept.reason}
    assert said == {"never": "the then_branch of node 'inner' (If) never ran on the calibration data"}
    assert "ran" in plan.quantized
