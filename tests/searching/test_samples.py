"""How many samples a search holds back to learn from and to judge by."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import onnxq
from onnxq import Options
from onnxq.searching.user_metric import Run
from tests.models import build, images, normal


@pytest.mark.parametrize(
    ("options", "kept"), [(Options(), 64), (Options(weight_bits=4), 256), (Options(weight_bits=4, keep=32), 32)]
)
def test_as_many_as_for_effort_best(options: Options, kept: int, tmp_path: Path) -> None:
    model = build("(float[1, 4, 6, 6] x) => (float[1, 4, 4, 4] y) { y = Conv (x, w) }", w=normal(4, 4, 3, 3))
    onnx.save(model, tmp_path / "m.onnx")
    held: list[int] = []

    def content(run: Run) -> float:
        held.extend(len(onnxq.Statistics.load(file).kept) for file in tmp_path.glob("*/statistics.npz"))
        return 1.0

    data = images(1, 4, 6, 6, samples=256)
    onnxq.search(tmp_path / "m.onnx", data, output=tmp_path / "q.onnx", max_drop=0.5, metric=content, options=options)
    assert held and set(held) == {kept}


@pytest.mark.parametrize("max_drop", [0.1, 0.5, 0.0])
def test_too_few_samples_for_what_may_be_lost_are_told(
    max_drop: float, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One of few is more than a tenth of them; who allows nothing, or half of them, asks for what can be had."""
    model = build("(float[1, 8] x) => (float[1, 5] y) { y = MatMul (x, w) }", w=normal(8, 5))
    data, out = images(1, 8, samples=12), tmp_path / "q.onnx"
    onnxq.search(model, data, output=out, max_drop=max_drop)
    told = [text for text in caplog.messages if text.startswith("agreement is counted on the ")]
    assert len(told) == (max_drop == 0.1)
    caplog.clear()
    onnxq.search(model, data, output=out, max_drop=max_drop, eval_data=images(1, 8, samples=4))
    assert not [text for text in caplog.messages if "held back, of which" in text]
