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
