"""Changes to a float model are kept where the quantized model gains: an output that is lost is no gain."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir
import pytest

import onnxq
from onnxq import Options
from onnxq.algorithm import FloatDraft
from onnxq.algorithms.channels.pairs import find_pairs, scale_pair
from onnxq.algorithms.common import keep_what_helps as trial
from onnxq.backend_choice import backend_named
from onnxq.calibration.moved import Move
from onnxq.calibration.statistics import KeptSample
from onnxq.graph.namer import Namer
from onnxq.measuring.noise import OutputNoise
from onnxq.options import Override
from onnxq.prepare import Prepared
from onnxq.quantized import Quantized
from tests.models import build, f32, images, normal


class Drown:
    """Computes the same: a channel between two layers becomes so loud that one scale drowns the others."""

    def apply(self, draft: FloatDraft) -> dict[str, Move]:
        pair = next(p for p in find_pairs(draft.model)[0] if p.name == "c2")
        factors = np.ones(8)
        factors[0] = 1e-4
        scale_pair(pair, factors, Namer(draft.model))
        return {name: Move(name, factors) for name in ("a", "r")}


def depths() -> FloatDraft:
    """One output is the reciprocal of small positive numbers: infinite where an integer is 0."""
    weight = np.abs(normal(8, 8, 1, 1, seed=2, scale=0.125))
    weight[:, 0] = 1e-4
    model = build(
        """(float[1, 8, 6, 6] x) => (float[1, 8, 6, 6] depth, float[1, 8, 6, 6] other) {
            [c1] a = Conv (x, w1, b1)
            r = Relu (a)
            [c2] s = Conv (r, w2, b2)
            depth = Reciprocal (s)
            [c3] other = Conv (x, w3, b3)
        }""",
        w1=normal(8, 8, 1, 1, seed=1, scale=1 / 3),
        b1=f32([3] * 8),
        w2=weight,
        b2=f32([0] * 8),
        w3=normal(8, 8, 1, 1, seed=3, scale=1 / 3),
        b3=f32([0] * 8),
    )
    options = Options(placement="all", weight_bits=3, override=(("c3", Override(weight_bits=8)),))
    target = backend_named("onnxruntime")
    fitted, _ = Prepared(ir.from_proto(model), options).for_target(target, options)
    statistics = onnxq.calibrate(model, images(1, 8, 6, 6, samples=32), options=options)
    return FloatDraft(fitted, target, options, statistics)


def test_a_change_that_makes_an_output_infinite_is_undone() -> None:
    draft = depths()
    before = draft.model
    outcome = trial.keep_what_helps(draft, [Drown()])
    assert outcome.kept == () and draft.model is before
    assert math.isfinite(outcome.before) and outcome.after == outcome.before


@pytest.mark.parametrize("lost", [np.nan, np.inf])
def test_outputs_without_numbers_at_the_start_judge_nothing_and_later_they_fail(
    lost: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = depths()
    samples = len(draft.held)

    def level(value: float) -> OutputNoise:
        return OutputNoise(np.full(samples, value), 1.0, 0)

    found: Iterator[dict[str, OutputNoise]] = iter([])

    def noise(quantized: Quantized, kept: list[KeptSample], options: Options) -> dict[str, OutputNoise]:
        return next(found)

    monkeypatch.setattr(trial, "output_noise", noise)
    start = {"bad": level(lost), "poor": level(1e-2), "good": level(1e-4)}
    found = iter([start, {**start, "poor": level(1e-3)}])
    assert trial.keep_what_helps(draft, [Drown()]).kept == (0,)
    found = iter([start, {**start, "poor": level(lost), "good": level(1e-5)}])
    assert trial.keep_what_helps(depths(), [Drown()]).kept == ()
