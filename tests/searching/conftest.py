"""A small model to search on, and a search that takes little time."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import onnxq
from onnxq.searching import candidates, trials
from tests.searching.hunting import by_operators, small_model


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two algorithms, and no real measuring of time: float layers cost, 16 bits cost more."""
    monkeypatch.setattr(
        candidates,
        "installed_algorithms",
        lambda: [a for a in onnxq.installed_algorithms() if a.NAME in ("bias_correction", "equalize")],
    )
    monkeypatch.setattr(trials.Trials, "_time", by_operators)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(small_model(), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"
