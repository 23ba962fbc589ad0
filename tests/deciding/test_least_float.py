"""How little of what stands before a noise amplifier stays float, where all of it is most of the model."""

from __future__ import annotations

from collections.abc import Iterable
from io import StringIO

import numpy as np
import onnx
import pytest

import onnxq
from onnxq.console.progress import LineReporter
from onnxq.deciding.least_float import least_float
from tests.models import build, f32, images, normal


def powers() -> onnx.ModelProto:
    """A layer that takes 8 bits well, filters that differ much in size, and the logarithm of their powers."""
    bank = normal(32, 32, 3, 3) * np.geomspace(1, 3e-3, 32)[:, None, None, None]
    return build(
        """(float[1, 32, 24, 24] x) => (float[1, 32, 24, 24] y) {
            [first] a = Conv <pads = [1, 1, 1, 1]> (x, w)
            r = Relu (a)
            [bank] b = Conv <pads = [1, 1, 1, 1]> (r, v)
            p = Mul (b, b)
            s = Max (p, low)
            l = Log (s)
            y = Sub (l, offset)
        }""",
        w=normal(32, 32, 3, 3, seed=1),
        v=bank.astype(np.float32),
        low=f32(1e-5),
        offset=f32(20.0),
    )


def test_a_spectrum_keeps_its_signal_although_it_is_all_of_the_model() -> None:
    q = onnxq.quantize(powers(), images(1, 32, 24, 24))
    assert q.verification is not None and q.verification.worst is not None
    assert q.verification.worst[1].sqnr_centred > 12, "what varies is still there"
    assert "first" in q.plan.quantized, "and something runs in integers"
    reasons = {k.node: k.reason for k in q.plan.kept_float}
    assert "Log" in reasons["bank"] and "amplifies" in reasons["bank"]


def test_a_lost_signal_beside_a_large_constant_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxq.deciding.decide.least_float", lambda *given: [])
    q = onnxq.quantize(powers(), images(1, 32, 24, 24))
    assert "first" in q.plan.quantized and "bank" not in q.plan.quantized, "the layer to blame alone stays float"
    monkeypatch.setattr("onnxq.deciding.mend.POOR", -np.inf)
    q = onnxq.quantize(powers(), images(1, 32, 24, 24))
    assert not q.plan.quantized, "weights alone are stored in integers"
    monkeypatch.setattr("onnxq.deciding.mend._Mending._lost", lambda *given: "")
    q = onnxq.quantize(powers(), images(1, 32, 24, 24))
    assert q.verification is not None and q.verification.worst is not None
    worst = q.verification.worst[1]
    assert worst.sqnr > 10 > worst.sqnr_centred
    assert any("with its mean removed, below the floor of 10 dB" in text for text in q.verification.warnings)


def test_parts_that_drown_a_signal_together_are_not_all_kept() -> None:
    def measure(kept: Iterable[str]) -> float:
        return {0: 3.0, 1: 16.0, 2: 40.0}[len({"a", "b"} & set(kept))]

    costs = {"a": 4.0, "u": 0.1, "b": 4.0, "v": 0.1, "behind": 1.0}
    assert least_float(["a", "u", "b", "v"], ["a", "b"], costs, measure) == ["a", "u"]


def test_a_signal_that_is_not_lost_costs_one_measurement() -> None:
    asked = []

    def measure(kept: Iterable[str]) -> float:
        asked.append(list(kept))
        return 13.0

    assert least_float(["a", "b"], ["a", "b"], {"a": 1.0, "b": 1.0}, measure) == []
    assert asked == [[]]


@pytest.mark.parametrize("found", [3.0, 5.0])
def test_nothing_stays_float_for_little(found: float) -> None:
    assert least_float(["a", "b"], ["a", "b"], {"a": 1.0, "b": 1.0}, lambda kept: found if list(kept) else 3.0) == []


def test_what_is_nearly_all_of_the_model_does_not_stay_float() -> None:
    costs = {"a": 9.0, "b": 1.0}
    assert least_float(["a"], ["a", "b"], costs, lambda kept: 30.0 if list(kept) else 3.0) == []


def test_many_layers_are_taken_in_pieces() -> None:
    names = [f"n{k}" for k in range(100)]
    asked = []

    def measure(kept: Iterable[str]) -> float:
        asked.append(set(kept))
        return 20.0 if "n40" in asked[-1] else 0.0

    found = least_float(names, names, dict.fromkeys(names, 1.0), measure)
    assert "n40" in found and len(found) <= 13
    assert len(asked) <= 9


def test_a_search_ends_where_it_would_take_too_long() -> None:
    names = [f"n{k}" for k in range(8)]
    asked = []

    def measure(kept: Iterable[str]) -> float:
        asked.append(set(kept))
        return 2.0 * len(asked[-1])

    costs = dict.fromkeys(names, 1.0)
    assert len(least_float(names, names, costs, measure, 20)) == 2 and len(asked) == 1 + 8 + 7
    asked.clear()
    assert len(least_float(names, names, costs, measure)) == 6 and len(asked) > 30


def test_a_search_shows_its_progress() -> None:
    stream = StringIO()
    onnxq.quantize(powers(), images(1, 32, 24, 24), reporter=LineReporter(stream))
    assert "find what hurts: " in stream.getvalue() and " trials in " in stream.getvalue()


def test_sorted_data_tell_as_much() -> None:
    """The first half of the samples is silence, behind which nothing is lost."""
    data = images(1, 32, 24, 24, samples=32)
    for feed in data[:16]:
        feed["x"][:] = 0
    q = onnxq.quantize(powers(), data)
    assert q.verification is not None and q.verification.worst is not None
    assert q.verification.worst[1].sqnr_centred > 12
    assert "first" in q.plan.quantized and "bank" not in q.plan.quantized
