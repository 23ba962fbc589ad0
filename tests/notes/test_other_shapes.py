"""Outputs whose number of rows depends on the numbers: told with what to do, and no reason to keep layers float."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxq
from onnxq.cli import main
from onnxq.measuring.metrics import Errors
from onnxq.notes.other_shapes import other_shapes
from tests.models import images, selecting


def test_outputs_alike_are_one_warning() -> None:
    boxes, labels = Errors(samples=8, reshaped=3, sqnr=30.0, score=-1.0), Errors(samples=8, reshaped=3)
    both, lost = other_shapes(
        {"boxes": boxes, "labels": labels, "fine": Errors(samples=8), "all": Errors(8, reshaped=8)}
    )
    assert both.startswith("output 'boxes', 'labels': another shape than in the float model in 3 of 8 samples; the fig")
    assert "'all'" in lost and "no figure tells how good it is" in lost
    assert "up to what selects" in lost and "decides on a length" in lost and "--metric" in lost


def test_a_default_run_says_it_and_writes_the_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(selecting(2000), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=np.stack([feed["x"] for feed in images(2000, 8, samples=16)]))
    command = ["quantize", str(tmp_path / "m.onnx"), "--data", str(tmp_path / "d.npz"), "-o", str(tmp_path / "q.onnx")]
    assert main([*command, "--placement", "all"]) == 0
    out = capsys.readouterr().out
    assert "SQNR         another shape in 8 of 8 samples" in out and "its size depends on the numbers" in out
    assert "2 Gemm" in out


@pytest.mark.parametrize("backend", ["openvino", "tensorrt"])
def test_no_layer_stays_float_for_it(backend: str) -> None:
    """Another output is judged; what is selected, whose rows are not even the same ones elsewhere, decides nothing."""
    model, data = selecting(2000, "u = Mul (s, s) t = Mul (u, u)", channels=64), images(2000, 64, samples=16)
    made = onnxq.quantize(model, data, backend=backend)
    assert made.verification is not None and made.verification.worst is not None
    assert made.verification.outputs["y"].reshaped >= 7 and made.verification.worst[0] == "t"
    assert 12 < made.verification.worst[1].sqnr < 40
    assert {"l1", "l2"} <= made.plan.quantized.keys()
