"""A draft of a small network whose layers lose much at few bits, and how it does in onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq import Options
from onnxq.algorithm import Draft
from onnxq.backend_choice import backend_named
from onnxq.calibration.statistics import KeptSample, Statistics
from onnxq.graph.shapes import sizes_at
from onnxq.numbers import choose_numbers
from onnxq.planning.planner import make_plan
from onnxq.prepare import Prepared
from onnxq.quantize import calibrate
from tests.contract import infer, sqnr
from tests.models import build, normal

__all__ = ["correlated", "draft_of", "fresh_sqnr", "residual", "rows_by_number"]

Feeds = list[dict[str, NDArray[Any]]]


def correlated(*shape: int, samples: int, seed: int) -> Feeds:
    """Inputs whose channels depend on each other, as those of real networks do."""
    mix = np.random.default_rng(1).standard_normal((shape[1], shape[1])) * 0.4 + 0.5
    rng = np.random.default_rng(seed)
    return [
        {"x": np.einsum("oc,nc...->no...", mix, rng.standard_normal(shape)).astype(np.float32)} for _ in range(samples)
    ]


def residual() -> onnx.ModelProto:
    """Two convolutions with a skip around the second one, and a third behind them."""
    text = """(float[N, 6, 8, 8] x) => (float[N, 4, 8, 8] y) {
        a = Conv <pads = [1, 1, 1, 1]> (x, w, b)
        r = Relu (a)
        c = Conv <pads = [1, 1, 1, 1]> (r, w2, b2)
        s = Add (c, r)
        t = Relu (s)
        y = Conv (t, w3, b3)
    }"""
    model = build(
        text,
        w=normal(8, 6, 3, 3),
        w2=normal(8, 8, 3, 3, seed=1),
        w3=normal(4, 8, 1, 1, seed=2),
        b=normal(8, seed=3),
        b2=normal(8, seed=4),
        b3=normal(4, seed=5),
    )
    for node in model.graph.node:
        node.name = node.output[0]
    return model


def rows_by_number() -> onnx.ModelProto:
    """A layer that reads the rows of another one's output whose first number is positive: quantized, these are others.

    Its input is ``x``, float[100, 8].
    """
    text = """(float[100, 8] x) => (float[1, 6] y) {
        [before] a = Gemm (x, w, b)
        first = Slice (a, zero, one, one)
        positive = Greater (first, nothing)
        wanted = Squeeze (positive, one)
        r = Compress <axis = 0> (a, wanted)
        [behind] c = Gemm (r, w2, b2)
        y = ReduceMean <axes = [0]> (c)
    }"""
    whole = {"zero": np.array([0]), "one": np.array([1]), "nothing": np.float32(0)}
    return build(text, w=normal(8, 16), b=normal(16, seed=1), w2=normal(16, 6, seed=2), b2=normal(6, seed=3), **whole)


def draft_of(model: onnx.ModelProto, feeds: Feeds, options: Options) -> Draft:
    """A model planned and given numbers, before any algorithm; all feeds are kept."""
    target = backend_named("onnxruntime")
    prepared = Prepared(model, options)
    statistics = calibrate(model, feeds, options=Options(keep=len(feeds)))
    kept: list[KeptSample] = statistics.kept
    assert isinstance(statistics, Statistics) and len(kept) == len(feeds)
    float_model = prepared.raised(prepared.model, 21)[0]
    sizes = sizes_at(float_model, {name: array.shape for name, array in kept[0].feeds.items()})
    plan = make_plan(float_model, target, options, sizes=sizes)
    numbers = choose_numbers(float_model, plan, statistics)
    return Draft(float_model.clone(), float_model, plan, numbers, target, options, statistics, sizes)


def fresh_sqnr(model: onnx.ModelProto, draft: Draft, feeds: Feeds) -> float:
    """dB of the output on data that the draft has not seen, in onnxruntime."""
    wanted = infer(model, feeds, optimize=False)["y"]
    return sqnr(wanted, infer(ir.to_proto(draft.quantized().rendered()), feeds, optimize=True)["y"])
