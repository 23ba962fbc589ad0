"""Comparing artifacts of a target: numbers in a table beside a float model, and targets named for others."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxq
from onnxq import Options
from onnxq.catalog import backends
from onnxq.cli import main
from onnxq.compare import compare
from onnxq.errors import BackendError, OptionError, OutputError
from tests.models import feeds_for
from tests.targets import BY_RUNTIMES, residual

TABLES = [
    (b.name, name)
    for b in backends()
    for name, form in b.formats.items()
    if form.beside and form.read and (b.name, name) not in BY_RUNTIMES
]
"""Formats whose numbers lie in a table beside a float model."""


@pytest.mark.parametrize(("backend", "form"), TABLES)
def test_numbers_beside_a_model_are_read(backend: str, form: str, tmp_path: Path) -> None:
    """What is compared is what the table says, not the float model that it lies beside."""
    feeds, path = feeds_for(residual()), tmp_path / "q.onnx"
    made = onnxq.quantize(residual(), feeds, backend=backend, options=Options(format=form), output=path)
    with pytest.raises(BackendError, match="has no quantizers, and a table lies beside it") as raised:
        compare(residual(), path, feeds)
    assert f"--backend {backend}" in str(raised.value.hint)
    found, expected = compare(residual(), path, feeds, backend=backend), compare(residual(), made, feeds)
    assert (
        found.outputs["y"].sqnr == pytest.approx(expected.outputs["y"].sqnr, abs=0.5) and found.outputs["y"].sqnr < 60
    )
    assert {t.tensor for t in found.tensors if t.quantized} >= {t.tensor for t in expected.tensors if t.quantized}
    assert (found.backend, expected.backend) == (backend, None)
    path.rename(tmp_path / "alone.onnx")
    assert compare(residual(), tmp_path / "alone.onnx", feeds).outputs["y"].sqnr > 30, "no table, a model as it is"


def test_a_target_may_be_named_for_any_artifact(tmp_path: Path) -> None:
    feeds = feeds_for(residual())
    for backend in ("onnxruntime", "tensorrt", "openvino"):
        made = onnxq.quantize(residual(), feeds, backend=backend, options=Options(placement="all"), output=tmp_path)
        found = compare(residual(), tmp_path, feeds, backend=backend)  # in the folder it was written to
        assert found.outputs["y"].sqnr == pytest.approx(compare(residual(), made, feeds).outputs["y"].sqnr, abs=0.01)


def test_targets_that_do_not_fit(tmp_path: Path) -> None:
    feeds, path = feeds_for(residual()), tmp_path / "q.onnx"
    made = onnxq.quantize(residual(), feeds, backend="snpe", output=path)
    with pytest.raises(BackendError, match="artifact of ncnn: ") as raised:
        compare(residual(), path, feeds, backend="ncnn")
    assert "--backend snpe" in str(raised.value.hint)
    with pytest.raises(OptionError, match="a model in memory"):
        compare(residual(), residual(), feeds, backend="snpe")
    with pytest.raises(OptionError, match="the result was made for snpe"):
        compare(residual(), made, feeds, backend="ncnn")
    with pytest.raises(OptionError, match="no backend named"):
        compare(residual(), path, feeds, backend="snpf")
    with pytest.raises(OutputError, match="there is no such file"):
        compare(residual(), tmp_path / "none.onnx", feeds, backend="snpe")


def test_the_command_line_reads_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    feeds = feeds_for(residual())
    onnx.save(residual(), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=np.stack([feed["x"] for feed in feeds]))
    model, data = str(tmp_path / "m.onnx"), ["--data", str(tmp_path / "d.npz")]
    floor = ["--act-bits", "2", "--min-sqnr", "30"]
    assert main(["quantize", model, *data, "--backend", "ppl", *floor, "-o", str(tmp_path / "q.onnx")]) == 3
    assert "Most is lost here, and 'onnxq compare --backend ppl' shows all" in " ".join(capsys.readouterr().out.split())
    command = ["compare", model, str(tmp_path / "q.onnx"), *data, "--json"]
    assert main(command) == 1
    said = json.loads(capsys.readouterr().out)["error"]
    assert said["kind"] == "BackendError" and "--backend ppl" in said["hint"]
    assert main([*command, "--backend", "ppl"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["backend"] == "ppl" and shown["outputs"]["y"]["sqnr"] < 30
    assert main([*command, "--backend", "ppl", "--backend", "snpe"]) == 2
