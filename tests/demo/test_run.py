"""The demonstration: where it writes, and that it judges what the target computes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from onnxq.cli import main
from onnxq.demo import run


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_ROUNDS", 1)


@pytest.mark.parametrize(("output", "written"), [("d", "d/digits_onnxruntime.onnx"), ("d.onnx", "d.onnx")])
def test_a_folder_or_a_file(output: str, written: str, tmp_path: Path) -> None:
    result, quantized = run.demo(tmp_path / output)
    assert [Path(result.output or ""), *quantized.files] == [tmp_path / written] * 2
    assert (tmp_path / written).stat().st_size == result.int8_bytes < result.float_bytes / 2


def test_the_accuracy_is_not_that_of_the_float_file_that_some_targets_are_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judged: list[object] = []
    monkeypatch.setattr(run, "_classify", lambda session, digits: np.arange(len(digits)) % 10)
    monkeypatch.setattr(run, "_milliseconds", lambda *_: [1.0, 1.0])
    monkeypatch.setattr("onnxq.demo.run.Session", lambda source, **options: judged.append(source))
    run.demo(backend="snpe")
    quantizers = [
        {node.op_type for node in source.graph.all_nodes()} & {"QuantizeLinear", "FakeQuantize"}
        for source in judged
        if isinstance(source, ir.Model)
    ]
    assert len(quantizers) == 1 and quantizers[0]


@pytest.mark.parametrize("backend", ["tensorrt_fp8", "tensorrt", "snpe"])
def test_of_other_targets_it_shows_no_speed(backend: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--backend", backend]) == 0
    shown = capsys.readouterr().out
    assert "batch of 64" not in shown and "times as fast" not in shown
    assert ("float8" if backend == "tensorrt_fp8" else "int8") in shown.splitlines()[1]
    assert ("not smaller" in shown) == (backend == "snpe"), "a float model and a table"


def test_of_onnxruntime_it_shows_speed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo"]) == 0
    assert "batch of 64" in capsys.readouterr().out
