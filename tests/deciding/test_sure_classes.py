"""A classifier that is sure of itself: a sample near a tie that turns is all of the noise, and gives up no integers."""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxq
from onnxq import Options
from onnxq.calibration.statistics import KeptSample
from onnxq.graph.files.load import load
from onnxq.measuring.before_softmax import classes_of, softmax_inputs
from onnxq.measuring.metrics import sqnr
from tests.models import build, f32, images, normal, verified_sqnr
from tests.running import open_session

OPTIONS = Options(placement="compute")


def classifier(seed: int, *, channel: float = 1.0) -> onnx.ModelProto:
    """Three classes, and logits of some hundreds; the first channel of the input may count for less."""
    weight = normal(16, 8, 3, 3, seed=seed)
    weight[:, 0] *= channel
    return build(
        """(float[1, 8, 12, 12] x) => (float[1, 3] y) {
            [first] a = Conv <pads = [1, 1, 1, 1]> (x, w)
            r = Relu (a)
            [second] b = Conv <pads = [1, 1, 1, 1]> (r, v)
            q = Relu (b)
            flat = Flatten (q)
            [head] logits = Gemm (flat, u)
            y = Softmax <axis = 1> (logits)
        }""",
        w=weight,
        v=normal(16, 16, 3, 3, seed=seed + 1),
        u=300 * normal(16 * 144, 3, seed=seed + 2),
    )


def data(seed: int) -> list[dict[str, np.ndarray]]:
    return images(1, 8, 12, 12, samples=32, seed=seed + 7)


def test_a_sample_near_a_tie_gives_up_no_integers() -> None:
    """Which of these have such a sample depends on the last bit of a sum: at least one has."""
    turned = []
    for seed in (18, 24, 30):
        made = onnxq.quantize(classifier(seed), data(seed), options=OPTIONS)
        assert {"first", "second", "head"} <= made.plan.quantized.keys()
        assert verified_sqnr(made) > 18
        turned += [hint for hint in made.hints if "Softmax" in hint]
        assert made.verification is not None
        assert ("logits" in made.verification.outputs) == bool([h for h in made.hints if "Softmax" in h])
    assert turned
    for hint in turned:
        assert re.fullmatch(
            r"output 'y': its probabilities keep -?\d+\.\d dB, which a sample or two near a tie decide: 2\d of 24 have "
            r"the same class; compared is what its Softmax reads, 'logits'",
            hint,
        )


def test_effort_best_tells_what_it_has_compared() -> None:
    """It verifies anew: where its hint says that the logits are compared, they are; at least one of these has such."""
    told = False
    for seed in (39, 15, 18, 42):
        feeds = images(1, 8, 12, 12, samples=128, seed=seed + 7)
        made = onnxq.quantize(classifier(seed), feeds, options=Options(placement="compute", effort="best"))
        assert made.verification is not None
        said = [hint for hint in made.hints if "compared is what its Softmax reads" in hint]
        assert made.verification.outputs.keys() == ({"logits"} if said else {"y"})
        if told := bool(said):
            break
    assert told


def test_noise_of_the_logits_is_not_excused() -> None:
    """Values of the first channel are ten thousand times those of the others, which alone count."""
    huge = f32([1e4] + [1] * 7).reshape(1, 8, 1, 1)
    feeds = [{"x": feed["x"] * huge} for feed in data(0)]
    made = onnxq.quantize(classifier(0, channel=0.0), feeds, options=OPTIONS)
    assert "first" not in made.plan.quantized
    assert made.verification is not None and made.verification.outputs.keys() == {"y"}


def test_the_figures_are_those_of_onnxruntime() -> None:
    model, feeds = classifier(3), data(3)
    made = onnxq.quantize(model, feeds, options=OPTIONS)
    loaded = load(model)
    assert softmax_inputs(loaded) == {"y": "logits"}
    samples = [KeptSample(k, feed, {}) for k, feed in enumerate(feeds)]
    found = classes_of(loaded, made, "y", "logits", samples, {})
    wanted, got = (_run(proto, feeds) for proto in (model, ir.to_proto(made.rendered())))
    assert found.errors.sqnr == pytest.approx(sqnr(wanted["logits"], got["logits"]), abs=0.01)
    assert found.rows == 32
    assert found.same == int((wanted["y"].argmax(-1) == got["y"].argmax(-1)).sum())


def _run(model: onnx.ModelProto, feeds: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    (node,) = (node for node in copy.graph.node if node.op_type == "Softmax")
    copy.graph.output.append(onnx.helper.make_tensor_value_info(node.input[0], onnx.TensorProto.FLOAT, None))
    session = open_session(copy)
    runs = [session.run(None, feed) for feed in feeds]
    return {"y": np.stack([run[0] for run in runs]), "logits": np.stack([run[1] for run in runs])}
