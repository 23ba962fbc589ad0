"""Time as a share of the float model's, and which models are alike."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import onnx_ir as ir
import pytest

from onnxq.ort.session import Session
from onnxq.search.latency import share_of_time, structure
from tests.models import build, f32, normal


class Fake:
    """A session that moves a clock on."""

    def __init__(self, now: list[float], took: Callable[[int], float]) -> None:
        self.now, self.took, self.runs = now, took, 0

    def run(self, feeds: Any) -> None:
        self.now[0] += self.took(self.runs)
        self.runs += 1


@pytest.mark.parametrize("slow", [0.001, 0.3])
def test_the_best_of_each_counts_and_the_first_run_does_not(slow: float) -> None:
    now = [0.0]
    base = Fake(now, lambda run: slow * (1 + run % 3))
    fast = Fake(now, lambda run: 0.0 if run == 0 else slow / 2 * (1 + run % 2))
    share = share_of_time(cast(Session, base), cast(Session, fast), {}, clock=lambda: now[0])
    assert share == pytest.approx(0.5)
    assert base.runs == fast.runs <= 101
    assert now[0] < 5


def test_twice_the_work_takes_longer() -> None:
    text = "(float[64, 256] x) => (float[64, 256] y) { %s }"
    once = build(text % "y = MatMul (x, w)", w=normal(256, 256))
    often = build(
        text % "a = MatMul (x, w)\n b = MatMul (a, w)\n c = MatMul (b, w)\n y = MatMul (c, w)", w=normal(256, 256)
    )
    short, long = (Session(m.SerializeToString(), threads=1) for m in (once, often))
    feeds = {"x": np.zeros((64, 256), np.float32)}
    assert share_of_time(short, long, feeds, clock=time.thread_time) > 2


def test_structure_is_that_of_operators_types_and_shapes() -> None:
    def of(text: str, w: Any) -> str:
        return structure(ir.from_proto(build(f"(float[N, 2] x) => (float[N, 2] y) {{ {text} }}", w=w)))

    first = of("y = MatMul (x, w)", f32([[1, 2], [3, 4]]))
    assert of("y = MatMul (x, w)", f32([[5, 6], [7, 8]])) == first
    assert of("y = Add (x, w)", f32([[1, 2], [3, 4]])) != first
    assert of("y = MatMul (x, w)", f32([[1, 2], [3, 4]]).astype(np.float64)) != first
    assert of("y = MatMul (x, w)", f32([[1, 2, 3], [3, 4, 5]])) != first
