"""Rounding, HQQ and GPTQ: what they learn from, and what they gain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnxq.calibration.chance import one_of_each_pair
from onnxq.measuring.metrics import sqnr
from onnxq.weight_only import quantize_weights
from onnxq.weight_only.hqq import hqq
from tests.models import build, normal
from tests.weight_only.layers import LOSS, feeds_of_layers, layers, run, save


@pytest.mark.parametrize("method", ["rtn", "hqq", "gptq"])
@pytest.mark.parametrize("external", [False, True])
def test_methods_on_data(method: str, external: bool, tmp_path: Path) -> None:
    source = save(layers(), tmp_path / "m.onnx", external=external)
    result = quantize_weights(source, tmp_path / "q.onnx", method=method, data=feeds_of_layers(12))
    worst = result.verification.worst
    assert worst is not None and worst[1].sqnr > LOSS[4]
    assert result.verification.samples == 6
    measured = (
        [run(source, f)["y"] for f in feeds_of_layers(12)],
        [run(tmp_path / "q.onnx", f, optimize=True)["y"] for f in feeds_of_layers(12)],
    )
    held = one_of_each_pair(12)[1]
    told = result.verification.outputs["y"].sqnr
    assert told == pytest.approx(sqnr(*(np.stack([outputs[k] for k in held]) for outputs in measured)), abs=0.5)
    if method == "gptq":
        (note,) = [note for note in result.notes if note.startswith("gptq")]
        assert "2 matrices" in note and "undone in 0" not in note


@pytest.mark.parametrize("first", [0, 1])
def test_kinds_of_samples_in_turn_are_all_learned_from(first: int, tmp_path: Path) -> None:
    """Learning from one kind and judging by the other would find nothing worth keeping."""
    rng = np.random.default_rng(0)
    turns = [np.linalg.qr(rng.standard_normal((256, 256)))[0] for _ in range(4)]
    mixed = [a * np.exp(-np.arange(256) / 12)[:, None] * 16 @ b for a, b in (turns[:2], turns[2:])]
    feeds = [{"x": (rng.standard_normal((64, 256)) @ mixed[(k + first) % 2]).astype(np.float32)} for k in range(32)]
    model = build("(float[64, 256] x) => (float[64, 256] y) { y = MatMul (x, w) }", w=normal(256, 256, scale=0.06))
    source = save(model, tmp_path / "m.onnx")
    result = quantize_weights(source, tmp_path / "q.onnx", method="gptq", data=feeds)
    plain = quantize_weights(source, tmp_path / "r.onnx", method="rtn", data=feeds)
    assert result.verification.outputs["y"].sqnr > plain.verification.outputs["y"].sqnr + 5
    assert "undone" not in result.notes[0]


def test_figures_of_few_samples_that_differ_much(tmp_path: Path) -> None:
    weight = normal(64, 64, scale=0.01)
    weight[0] = 10  # leaves nothing of the rest of its block
    source = save(build("(float[1, 64] x) => (float[1, 64] y) { y = MatMul (x, w) }", w=weight), tmp_path / "m.onnx")
    data = np.zeros((128, 64), np.float32)
    data[:, 0] = np.linspace(1, 2, 128)
    data[::8, 1:] = 100
    result = quantize_weights(source, tmp_path / "q.onnx", data=data)
    assert any("these figures are of 8 of 128: onnxq compare runs" in text for text in result.verification.warnings)


def test_gptq_beats_nearest_at_the_output(tmp_path: Path) -> None:
    proto = build("(float[N, 128] x) => (float[N, 64] y) { y = MatMul (x, a) }", a=normal(128, 64))
    rng = np.random.default_rng(3)
    mixing = rng.standard_normal((16, 128))

    def draw() -> dict[str, np.ndarray]:
        return {"x": (rng.standard_normal((64, 16)) @ mixing).astype(np.float32)}

    data, fresh = [draw() for _ in range(8)], draw()
    source = save(proto, tmp_path / "m.onnx")
    error = {}
    for method in ("rtn", "gptq"):
        quantize_weights(source, tmp_path / "q.onnx", method=method, data=data, format="matmulnbits")
        error[method] = np.linalg.norm(run(tmp_path / "q.onnx", fresh)["y"] - run(source, fresh)["y"])
    assert error["gptq"] <= 0.8 * error["rtn"]


def test_tables_are_rounded_to_nearest_whatever_the_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty times the work for a quarter of a dB at 45, on what is most of a model of sentences."""
    seen: list[tuple[int, ...]] = []

    def fitted(matrix: np.ndarray, *args: Any, **others: Any) -> Any:
        seen.append(matrix.shape)
        return hqq(matrix, *args, **others)

    monkeypatch.setattr("onnxq.weight_only.learn.hqq", fitted)
    quantize_weights(save(layers(), tmp_path / "m.onnx"), tmp_path / "q.onnx", method="hqq")
    assert seen == [(40, 72), (40, 40)]
