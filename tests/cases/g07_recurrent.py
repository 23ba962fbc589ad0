"""Group 7: recurrent operators."""

from __future__ import annotations

import onnx

from tests.cases.case import Given, case
from tests.models import build, feeds_for, images, normal


def recurrent(kind: str, gates: int, extra: str = "", direction: str = "forward") -> onnx.ModelProto:
    d = 2 if direction == "bidirectional" else 1
    return build(
        f"""(float[5, 2, 8] x) => (float[5, {d}, 2, 6] y) {{
            [r] y = {kind} <hidden_size = 6, direction = "{direction}"> (x, w, r, b{extra})
        }}""",
        w=normal(d, gates * 6, 8, scale=0.4),
        r=normal(d, gates * 6, 6, scale=0.4, seed=1),
        b=normal(d, gates * 12, seed=2, scale=0.1),
    )


@case("G7")
def lstm_with_state() -> Given:
    """LSTM with peepholes and initial states: weights stored as integers, or said that not."""
    model = build(
        """(float[5, 2, 8] x, float[1, 2, 6] h0, float[1, 2, 6] c0) => (float[5, 1, 2, 6] y, float[1, 2, 6] h) {
            y, h = LSTM <hidden_size = 6> (x, w, r, b, , h0, c0, p)
        }""",
        w=normal(1, 24, 8, scale=0.4),
        r=normal(1, 24, 6, scale=0.4, seed=1),
        b=normal(1, 48, scale=0.1, seed=2),
        p=normal(1, 18, scale=0.1, seed=3),
    )
    return Given(model, feeds_for(model))


@case("G7", least=25)
def lstm() -> Given:
    """LSTM: weights stored as integers, or said that not."""
    return Given(recurrent("LSTM", 4), images(5, 2, 8))


@case("G7", least=25)
def gru() -> Given:
    """GRU in both directions: weights stored as integers, or said that not."""
    return Given(recurrent("GRU", 3, direction="bidirectional"), images(5, 2, 8))


@case("G7", least=25)
def rnn() -> Given:
    """RNN: weights stored as integers, or said that not."""
    return Given(recurrent("RNN", 1), images(5, 2, 8))
