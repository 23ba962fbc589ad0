"""Boxes beside scores in one output: candidates are compared by both, and one without scores is never better."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import onnxq
from onnxq import Options
from onnxq.calibration.statistics import KeptSample
from onnxq.measuring.apart import far_apart
from onnxq.measuring.metrics import sqnr
from onnxq.measuring.noise import output_noise
from onnxq.measuring.score import score_of
from onnxq.ort.session import Session
from onnxq.prepare import Prepared
from tests.models import build, f32, images, normal


def detector(boxes: float) -> onnx.ModelProto:
    """Four numbers of a box, of some size, beside two scores up to 1 at each place."""
    return build(
        """(float[1, 8, 6, 6] x) => (float[1, 6, 36] y) {
            [body] f = Conv <pads = [1, 1, 1, 1]> (x, w)
            r = Relu (f)
            [box] b = Conv (r, wb)
            flat = Reshape (b, four)
            boxes = Mul (flat, size)
            [score] s = Conv (r, ws)
            logits = Reshape (s, two)
            scores = Sigmoid (logits)
            y = Concat <axis = 1> (boxes, scores)
        }""",
        w=normal(16, 8, 3, 3),
        wb=normal(4, 16, 1, 1, seed=1),
        ws=normal(2, 16, 1, 1, seed=2),
        four=np.array([1, 4, 36]),
        two=np.array([1, 2, 36]),
        size=f32([boxes]),
    )


def kept(model: onnx.ModelProto) -> list[KeptSample]:
    session = Session(model.SerializeToString())
    return [KeptSample(k, feed, session.run(feed)) for k, feed in enumerate(images(1, 8, 6, 6, samples=8))]


@pytest.mark.parametrize(("size", "apart"), [(300.0, True), (1.0, False)])
def test_only_where_the_whole_does_not_show_a_part(size: float, apart: bool) -> None:
    model = detector(size)
    found = far_apart(Prepared(model, Options()).model, kept(model))
    assert {output: part.names for output, part in found.items()} == ({"y": ("boxes", "scores")} if apart else {})
    assert far_apart(Prepared(model, Options()).model, []) == {}


def test_the_noise_of_each_part_is_that_of_onnxruntime() -> None:
    model = detector(300.0)
    made = onnxq.quantize(model, images(1, 8, 6, 6, samples=24), options=Options(placement="compute"))
    samples = kept(model)
    found = output_noise(made, samples, Options())
    assert found is not None and found.keys() == {"y: boxes", "y: scores"}
    session = Session(made.rendered())
    got = [session.run(sample.feeds)["y"] for sample in samples]
    for name, rows in (("boxes", slice(0, 4)), ("scores", slice(4, 6))):
        wanted = np.stack([sample.outputs["y"][:, rows] for sample in samples])
        noise = found[f"y: {name}"]
        told = 10 * np.log10(noise.signal / noise.noise.mean())
        assert told == pytest.approx(sqnr(wanted, np.stack(got)[:, :, rows]), abs=0.01)


def test_the_worse_part_is_the_worst() -> None:
    model = detector(300.0)
    made = onnxq.quantize(model, images(1, 8, 6, 6, samples=24), options=Options(placement="compute"))
    score = score_of(made, kept(model), Options())
    assert score.worst == min(score.sqnr.values()) and len(score.sqnr) == 2
