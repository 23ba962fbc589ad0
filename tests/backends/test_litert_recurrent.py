"""Recurrent layers written out step by step: LiteRT computes what onnxruntime does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.backends.litert_interpreter import agrees, refusal
from tests.models import build, normal

pytest.importorskip("ai_edge_litert")

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def net(op: str, attributes: str = "", *, directions: int = 1, steps: int = 5, states: bool = False) -> Any:
    """A layer of 6 units on 3 samples of 4 numbers a step, all its outputs read."""
    size, rows = 6, GATES[op] * 6
    kept = f"{directions}, 3, {size}"
    given = f", float[{kept}] h" + (f", float[{kept}] c" if op == "LSTM" else "") if states else ""
    read = ", b, , h" + (", c" if op == "LSTM" else "") if states else ", b"
    made = "y, last, inner" if op == "LSTM" else "y, last"
    ends = ", ".join(f"float[] {name}" for name in made.split(", "))
    layer = f"{op} <hidden_size = {size}{attributes}> (x, w, r{read})"
    return build(
        f"(float[{steps}, 3, 4] x{given}) => ({ends}) {{ {made} = {layer} }}",
        w=normal(directions, rows, 4, scale=0.5),
        r=normal(directions, rows, size, seed=1, scale=0.4),
        b=normal(directions, 2 * rows, seed=2, scale=0.3),
    )


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("states", [False, True])
@pytest.mark.parametrize(
    ("direction", "directions"), [("forward", 1), ("reverse", 1), ("bidirectional", 2)], ids=["->", "<-", "<->"]
)
def test_all_outputs_in_all_directions(op: str, states: bool, direction: str, directions: int) -> None:
    agrees(net(op, f', direction = "{direction}"', directions=directions, states=states))


@pytest.mark.parametrize("op", GATES)
def test_one_step(op: str) -> None:
    agrees(net(op, steps=1, states=True))


def test_a_gru_that_resets_behind_the_product() -> None:
    agrees(net("GRU", ", linear_before_reset = 1", states=True))


def test_an_rnn_with_another_function() -> None:
    agrees(net("RNN", ', activations = ["Relu"]'))


@pytest.mark.parametrize(
    ("attributes", "why"),
    [
        (", clip = 1.0", "clips"),
        (', activations = ["Sigmoid", "Softsign", "Tanh"]', "its functions are Sigmoid, Softsign"),
    ],
)
def test_what_is_not_written_out(attributes: str, why: str) -> None:
    assert why in refusal(net("LSTM", attributes))


def test_many_steps_are_not_written_out() -> None:
    assert "200 steps" in refusal(net("GRU", steps=200))


def test_sequences_of_lengths_of_their_own_are_refused() -> None:
    model = build(
        "(float[5, 2, 4] x) => (float[] y) { y = GRU <hidden_size = 6> (x, w, r, , lengths) }",
        w=normal(1, 18, 4),
        r=normal(1, 18, 6),
        lengths=np.array([5, 3], np.int32),
    )
    assert "lengths of their own" in refusal(model)
