"""Positions of the XINT8 target within reach of the DPU's shifters: each limit, from both sides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import onnxq
from onnxq import Options
from onnxq.backends.vitis import BACKEND
from onnxq.backends.vitis.positions import adjust, position
from onnxq.planning.planner import make_plan
from onnxq.prepare import Prepared
from onnxq.qparams import QParams
from tests.models import build, normal


def moved(text: str, positions: dict[str, int], **constants: Any) -> tuple[dict[str, int], list[str]]:
    """Positions by site after `adjust`, from those given (0 for all others)."""
    model = Prepared(build(text, **constants), Options()).for_target(BACKEND, Options())[0]
    plan = make_plan(model, BACKEND)
    numbers = {
        site.name: QParams(
            site.spec, np.asarray(2.0 ** -positions.get(plan.root(site).tensor, 0), np.float32), np.asarray(0)
        )
        for site in plan.sites
    }
    notes = adjust(model, plan, numbers)
    return {name: position(qp) for name, qp in numbers.items()}, notes


CONV = "(float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) { [conv] y = Conv (x, w, b) }"
LEAKY = """(float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) {
    [conv] a = Conv (x, w, b)
    [act] y = LeakyRelu <alpha = 0.25> (a)
}"""
LAYER = {"w": normal(4, 4, 1, 1), "b": normal(4)}
ADD = "(float[4, 4] x, float[4, 4] z) => (float[4, 4] y) { [add] y = Add (x, z) }"
MUL = "(float[4, 4] x, float[4, 4] z) => (float[4, 4] y) { [mul] y = Mul (x, z) }"
POOL = "(float[1, 4, 8, 8] x) => (float[1, 4, 4, 4] y) { y = AveragePool <kernel_shape=[2, 2], strides=[2, 2]> (x) }"
CONCAT = "(float[4, 4] x, float[4, 4] z) => (float[8, 4] y) { y = Concat <axis = 0> (x, z) }"
GATE = "(float[4, 4] x) => (float[4, 4] y) { y = HardSigmoid <alpha = 0.16666667, beta = 0.5> (x) }"


@pytest.mark.parametrize(
    ("text", "constants", "before", "after"),
    [
        (CONV, LAYER, {"x": 3, "w": 2, "y": 8, "b": 5}, {"w": 5}),  # shift_cut -3
        (CONV, LAYER, {"x": 9, "w": 12, "y": 2, "b": 10}, {"w": 9}),  # shift_cut 19
        (CONV, LAYER, {"x": 6, "w": 7, "y": 5, "b": 7}, {}),
        (CONV, LAYER, {"x": 9, "w": 9, "y": 5, "b": 1}, {"b": 3}),  # shift_bias 17
        (CONV, LAYER, {"x": 4, "w": 4, "y": 5, "b": 30}, {"b": 21}),  # -22; lowest is 3 - 16 = -13
        (LEAKY, LAYER, {"x": 4, "w": 4, "y": 5, "b": 10}, {"b": 8}),  # lowest is 0
        (ADD, {}, {"x": 10, "z": 1, "y": 1}, {"x": 8}),
        (ADD, {}, {"x": 1, "z": 1, "y": 12}, {"y": 8}),
        (ADD, {}, {"x": 20, "z": 20, "y": -10}, {"y": -5}),
        (MUL, {}, {"x": 2, "z": 1, "y": 7}, {"y": 3}),
        (MUL, {}, {"x": 20, "z": 20, "y": 7}, {"y": 8}),
        (POOL, {}, {"x": 4, "y": 6}, {"y": 4}),
        (POOL, {}, {"x": 6, "y": 4}, {"x": 4}),
        (GATE, {}, {"x": -2, "y": 5}, {"x": 0, "y": 7}),
        (GATE, {}, {"x": 17, "y": 31}, {"x": 15, "y": 29}),
    ],
)
def test_limits_of_shifts(
    text: str,
    constants: dict[str, NDArray[Any]],
    before: dict[str, int],
    after: dict[str, int],
) -> None:
    result, notes = moved(text, before, **constants)
    assert result == {**before, **after}
    assert len(notes) == len(after)
    for name, at in after.items():
        assert any(f"'{name}' moved from {before[name]} to {at}" in note for note in notes)


def test_swish_has_a_narrower_shift() -> None:
    text = "(float[4, 4] x) => (float[4, 4] y) { y = HardSwish (x) }"
    result, _ = moved(text, {"x": 12, "y_gate": 10, "y": 3})
    assert result == {"x": 12, "y_gate": 10, "y": 7}


def test_concat_has_one_position_which_its_constants_share() -> None:
    plan = onnxq.plan(build(CONCAT), backend="vitis")
    assert len({plan.root(site).name for site in plan.sites}) == 1
    text = "(float[4, 4] x) => (float[8, 4] y) { y = Concat <axis = 0> (x, c) }"
    result, _ = moved(text, {"x": 6, "y": 6, "c": 2}, c=normal(4, 4))
    assert len(set(result.values())) == 1


def test_what_a_hard_sigmoid_writes_stays_at_7_beside_a_lower_one() -> None:
    text = """(float[4, 4] x, float[4, 4] z) => (float[8, 4] y) {
        g = HardSigmoid <alpha = 0.16666667, beta = 0.5> (x)
        y = Concat <axis = 0> (g, z)
    }"""
    result, notes = moved(text, {"x": 5, "g": 9, "z": 2, "y": 2})
    assert result == {"x": 5, "z": 2, "g": 7, "y": 2} and len(notes) == 1


def test_scales_that_are_no_powers_of_two_are_raised() -> None:
    model = Prepared(build(ADD), Options()).for_target(BACKEND, Options())[0]
    plan = make_plan(model, BACKEND)
    numbers = {s.name: QParams(s.spec, np.asarray(0.3, np.float32), np.asarray(0)) for s in plan.sites}
    notes = adjust(model, plan, numbers)
    assert {float(qp.scale) for qp in numbers.values()} == {0.5} and len(notes) == 1
