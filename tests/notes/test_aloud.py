"""What a result warns of is logged where onnxq is called from Python."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

import onnxq
from onnxq import dynamic, weight_only
from onnxq.options import Options
from tests.models import build, feeds_for, normal
from tests.targets import residual

FEEDS = feeds_for(residual(), samples=1)
"""Of which too few are told of."""
BAD = Options(placement="all", weight_bits=2, act_bits=2, min_sqnr=60.0, effort="fast")


def _said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if (r.name, r.levelno) == ("onnxq", logging.WARNING)]


def test_each_warning_is_logged_once_and_so_is_a_result_below_the_floor(caplog: pytest.LogCaptureFixture) -> None:
    made = onnxq.quantize(residual(), FEEDS, options=BAD)
    assert made.verification is not None and made.verification.warnings
    for text in made.verification.warnings:
        assert _said(caplog).count(text) == 1
    assert sum("below the floor of 60 dB" in text for text in _said(caplog)) == 1


def test_results_of_several_targets_are_told_apart(caplog: pytest.LogCaptureFixture) -> None:
    onnxq.quantize_all(
        residual(), FEEDS, backends=["onnxruntime", "snpe"], options=replace(BAD, weight_bits=4, act_bits=8)
    )
    below = [text.partition(":")[0] for text in _said(caplog) if "below the floor of 60 dB" in text]
    assert below == ["onnxruntime", "snpe"]


def test_dynamic_says_it_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    onnx.save(residual(), tmp_path / "m.onnx")
    checked = dynamic.rewrite(tmp_path / "m.onnx", FEEDS, output=tmp_path / "q.onnx", options=Options(min_sqnr=500.0))
    assert set(checked.verification.warnings) <= set(_said(caplog))


def test_deploy_and_weight_only_say_it_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    given = onnxq.quantize(residual(), FEEDS, options=replace(BAD, weight_bits=8, act_bits=8)).rendered()
    caplog.clear()
    made = onnxq.deploy(given, backend="snpe")
    assert made.verification is not None and _said(caplog) == list(made.verification.warnings)
    weight, feed = normal(64, 64), normal(1, 64, seed=1, scale=1.0)
    weight[::32], feed[:, ::32] = 1e3, 0  # steps for rows that nothing is multiplied with
    onnx.save(build("(float[1, 64] x) => (float[1, 64] y) { y = MatMul (x, w) }", w=weight), tmp_path / "m.onnx")
    caplog.clear()
    stored = weight_only.quantize_weights(tmp_path / "m.onnx", tmp_path / "q.onnx", data=[{"x": feed}])
    assert stored.verification.warnings and set(stored.verification.warnings) <= set(_said(caplog))


def test_of_a_search_only_the_result_is_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = onnxq.search(
        residual(), feeds_for(residual(), samples=4), max_drop=1.0, output=tmp_path / "q.onnx", options=Options()
    )
    warned = found.report["verification"]["warnings"]
    assert [text for text in _said(caplog) if text in warned] == warned
    assert len(_said(caplog)) == len(set(_said(caplog)))
