from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxq.console.progress import Silent
from onnxq.graph.files.load import load
from onnxq.measuring import samples_to_judge as module
from onnxq.options import Options
from tests.models import build, normal

DATA = np.random.default_rng(0).normal(size=(160, 4)).astype(np.float32)


def judges(data: Any, samples: int | None = None) -> tuple[list[int], int | None]:
    model = load(build("(float[1, 4] x) => (float[1, 2] y) { y = MatMul (x, w) }", w=normal(4, 2)))
    kept, there = module.samples_to_judge(model, data, Options(samples=samples), None, Silent())
    assert all(set(sample.outputs) == {"y"} for sample in kept)
    return [sample.index for sample in kept], there


def test_many_of_a_quick_model() -> None:
    indices, there = judges(DATA)
    assert (len(indices), there) == (64, 160)
    assert indices[0] < 3 and max(np.diff(indices)) <= 5
    assert len(judges(DATA, samples=20)[0]) == 20
    assert judges(DATA[:5]) == (list(range(5)), 5)


def test_few_of_a_slow_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SECONDS", 0.0)
    indices, there = judges(DATA)
    assert ([index // 20 for index in indices], there) == (list(range(8)), 160)


def test_few_of_what_can_be_read_once() -> None:
    assert judges({"x": row[None]} for row in DATA) == (list(range(8)), None)


def test_none() -> None:
    assert judges(None) == ([], None)
