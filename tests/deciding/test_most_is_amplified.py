"""What stays float before a noise amplifier, where all that stands before it is most of the model."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import onnxq
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
        low=f32(1e-6),
        offset=f32(20.0),
    )


def test_a_spectrum_keeps_its_signal_although_it_is_all_of_the_model() -> None:
    q = onnxq.quantize(powers(), images(1, 32, 24, 24))
    assert q.verification is not None and q.verification.worst is not None
    assert q.verification.worst[1].sqnr_centred > 12, "what varies is still there"
    assert "first" in q.plan.quantized, "and something runs in integers"
    reasons = {k.node: k.reason for k in q.plan.kept_float}
    assert "quantized alone" in reasons["bank"], "the layer to blame"
    assert any("Log 'Log" in note and "of the quantized work comes before it" in note for note in q.notes)


def test_a_lost_signal_beside_a_large_constant_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxq.deciding.mend.POOR", -np.inf)
    q = onnxq.quantize(powers(), images(1, 32, 24, 24))
    assert not q.plan.quantized, "weights alone are stored in integers"
    monkeypatch.setattr("onnxq.deciding.mend._Mending._lost", lambda *given: "")
    q = onnxq.quantize(powers(), images(1, 32, 24, 24))
    assert q.verification is not None and q.verification.worst is not None
    worst = q.verification.worst[1]
    assert worst.sqnr > 10 > worst.sqnr_centred
    assert any("with its mean removed, below the floor of 10 dB" in text for text in q.verification.warnings)


def test_sorted_data_tell_as_much() -> None:
    """The first half of the samples is silence, behind which nothing is lost."""
    data = images(1, 32, 24, 24, samples=32)
    for feed in data[:16]:
        feed["x"][:] = 0
    q = onnxq.quantize(powers(), data)
    assert q.verification is not None and q.verification.worst is not None
    assert q.verification.worst[1].sqnr_centred > 12
    assert "first" in q.plan.quantized and "bank" not in q.plan.quantized
