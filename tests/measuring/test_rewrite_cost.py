"""What a target's rewrites change is measured on the samples that the result was verified on."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from onnxq.calibration.roles import samples_to_verify
from onnxq.calibration.statistics import KeptSample
from onnxq.graph.values import COMPUTES_OTHER
from onnxq.measuring.outputs import errors_of
from onnxq.measuring.rewrite_cost import rewrite_cost
from onnxq.measuring.verification import Verification
from onnxq.options import Options
from onnxq.ort.session import Session
from tests.models import build, images

REWRITTEN = ir.serde.deserialize_model(build("(float[1, 64] x) => (float[1, 64] y) { y = Relu (x) }"))


def kept(signs: list[float]) -> list[KeptSample]:
    """Samples of a model that does nothing, of which the rewritten one loses what is negative."""
    feeds = [np.abs(feed["x"]) * np.float32(sign) for feed, sign in zip(images(1, 64, samples=16), signs, strict=True)]
    return [KeptSample(k, {"x": x}, {"y": x}) for k, x in enumerate(feeds)]


def said(samples: list[KeptSample]) -> list[str]:
    run: Any = Session(REWRITTEN).run
    judges = [(sample.feeds, sample.outputs) for sample in samples_to_verify(samples, False, at_home=False)]
    return rewrite_cost(REWRITTEN, "that", Verification(outputs=errors_of(run, judges)), samples, Options())


@pytest.mark.parametrize("signs", [[1.0] * 8 + [-1.0] * 8, [-1.0] * 8 + [1.0] * 8, [1.0, 1.0, -1.0, -1.0] * 4])
def test_the_order_of_the_data_does_not_matter(signs: list[float]) -> None:
    (text,) = said(kept(signs))
    assert text.startswith("what was rewritten for that leaves output 'y' ") and "--exclude" not in text


def test_what_computes_other_numbers_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REWRITTEN.graph[0].meta, COMPUTES_OTHER, "Sigmoid")
    (text,) = said(kept([1.0] * 8 + [-1.0] * 8))
    assert text.endswith("--exclude Sigmoid leaves those as they are, in float")


def test_nothing_is_said_where_nothing_changes() -> None:
    assert said(kept([1.0] * 16)) == []
