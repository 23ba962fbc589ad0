"""What is written out otherwise than onnxruntime computes it is not measured against itself without a word."""

from __future__ import annotations

import numpy as np
import pytest

import onnxq
from onnxq.graph.passes import converter, write_out
from tests.models import build, feeds_for, normal


@pytest.mark.parametrize("wrong", [False, True])
def test_what_is_written_out_is_held_against_the_model_given(wrong: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(
        "(float[1, 8, 16] x) => (float[1, 8, 16] y) { m = MatMul (x, w)  y = com.microsoft.QuickGelu (m) }",
        domains={"com.microsoft": 1},
        w=normal(16, 16),
    )
    if wrong:
        other = {**write_out._WRITERS, "com.microsoft::QuickGelu": lambda chain: chain.put("Sigmoid", chain.x)}
        monkeypatch.setattr(write_out, "_WRITERS", other)
    feeds = feeds_for(model, samples=8)
    statistics = onnxq.calibrate(model, feeds)
    told = [text for text in statistics.warnings() if "from that of the model given" in text]
    assert bool(told) == wrong
    if wrong:
        assert told[0].startswith("output 'y' is ") and "com.microsoft::QuickGelu" in told[0]
        q = onnxq.quantize(model, feeds)
        assert q.verification is not None and told[0] in q.verification.warnings


@pytest.mark.parametrize("wrong", [False, True])
def test_what_the_converter_makes_is_held_against_the_model_given(wrong: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the result would be compared with what it made, and look right."""
    model = build(
        """(float[1, 3, 16, 16] x) => (float[1, 4, h, w] y) {
            c = Conv (x, k)
            y = Resize <mode = "linear"> (c, s)
        }""",
        opset=10,
        k=normal(4, 3, 3, 3),
        s=np.array([1, 1, 1.5, 2], np.float32),
    )
    if wrong:
        monkeypatch.setattr(converter, "say_places", lambda graph, places: None)
    q = onnxq.quantize(model, feeds_for(model, samples=8))
    assert q.verification is not None
    told = [text for text in q.verification.warnings if "since its opset was raised" in text]
    assert bool(told) == wrong
    if wrong:
        assert told[0].startswith("output 'y' is ") and "export it anew" in told[0]
