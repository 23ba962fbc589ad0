"""Real pretrained models, default settings, their own task metrics on held-out data.

ONNXQ_ZOO=<folder with zoo.py and models/> python -m pytest -m slow tests/end_to_end/test_zoo.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

import onnxq

ZOO = os.environ.get("ONNXQ_ZOO")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.zoo,
    pytest.mark.skipif(ZOO is None, reason="ONNXQ_ZOO names no folder of models"),
]

FLOORS: dict[str, dict[str, float]] = {
    "basic_pitch": {"note_f1": 0.709 - 0.01},
    "doc_orient": {"acc": 0.994 - 0.01},
    "effnet_lite0": {"stamp_top1": 0.740 - 0.01, "cifar_acc": 0.860 - 0.01, "photo_sqnr_db": 18.5},
    "fashion_vit": {"acc": 0.839 - 0.01},
    "magika": {"acc": 0.94},
    "mnist_cnn": {"acc": 0.826 - 0.01},
    "mnist_unet": {"iou": 0.728 - 0.01},
    "nsnet2": {"sisdr_gain_db": 6.14 - 0.061},
    "ppocr_det": {"hmean": 0.890 - 0.01},
    "silero_vad": {"auc": 0.968 - 0.01},
    "swift_f0": {"rpa50": 0.99},
    "u2netp": {"iou": 0.785},
}
"""Lowest acceptable metrics: the float model's less one point, or a stricter bound."""


@pytest.mark.parametrize("name", FLOORS)
def test_metric_within_a_point_of_float(name: str, tmp_path: Path) -> None:
    assert ZOO is not None
    folder, output = Path(ZOO) / "models" / name, tmp_path / "int8.onnx"
    quantized = onnxq.quantize(folder / "model.onnx", str(folder / "calib.npz"), output=output)
    assert quantized.plan.quantized or quantized.plan.stored
    assert output.stat().st_size <= (folder / "model.onnx").stat().st_size
    onnx.checker.check_model(str(output), full_check=True)
    run = subprocess.run(
        [sys.executable, "zoo.py", "eval", name, str(output)], cwd=ZOO, capture_output=True, text=True, check=True
    )
    metrics = json.loads(run.stdout.strip().splitlines()[-1])
    for metric, floor in FLOORS[name].items():
        assert metrics[metric] >= floor, metrics
