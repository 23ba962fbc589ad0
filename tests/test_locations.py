"""Where results go: what cannot be written is found before the work."""

from __future__ import annotations

import errno
import tempfile
from importlib import import_module
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxq
from onnxq import dynamic
from onnxq.cli import main
from onnxq.errors import OptionError, OutputError
from onnxq.locations import require_folder
from tests.models import feeds_for
from tests.targets import residual


@pytest.mark.parametrize(
    ("number", "hint"),
    [(errno.EACCES, "Write to another folder"), (errno.ENOSPC, "Free some space, or write to another folder")],
)
def test_a_folder_that_takes_no_files_is_refused_before_any_work(
    number: int, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(**_: object) -> None:
        raise OSError(number, "no")

    monkeypatch.setattr(tempfile, "NamedTemporaryFile", refused)
    monkeypatch.setattr(import_module("onnxq.quantize"), "observe", lambda *_: pytest.fail("it calibrated"))
    with pytest.raises(OutputError, match=r"q\.onnx': cannot be written, its folder takes no files: no") as raised:
        onnxq.quantize(residual(), feeds_for(residual()), output=tmp_path / "q.onnx")
    assert raised.value.hint == hint


@pytest.mark.parametrize("output", ["q.onnx", "new", "there", "q.d", "new/one/more"])
def test_nothing_is_left_of_the_trial(output: str, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    require_folder(tmp_path / output)
    assert [path.name for path in tmp_path.rglob("*")] == ["there"]


@pytest.mark.parametrize("output", ["out", "new/out", "new/out_v0.1"])
def test_folders_for_several_targets_are_made(output: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = residual()
    onnx.save(model, tmp_path / "net.onnx")
    np.savez(tmp_path / "d.npz", x=np.stack([feed["x"] for feed in feeds_for(model)]))
    onnxq.quantize(model, feeds_for(model), backend="tvm", output=tmp_path / "given.onnx")
    both = ["--backend", "rknn", "--backend", "tvm", "-o"]
    for folder, command in (
        (
            tmp_path / output,
            ["quantize", str(tmp_path / "net.onnx"), "--data", str(tmp_path / "d.npz")],
        ),
        (tmp_path / "deployed" / output, ["deploy", str(tmp_path / "given.onnx")]),
    ):
        for _ in range(2):  # and into one that is there
            assert main([*command, *both, str(folder)]) == 0, capsys.readouterr().err
        assert sorted(path.name.rsplit("_", 1)[1] for path in folder.iterdir()) == ["rknn.onnx", "tvm.onnx"]


def test_the_folder_of_one_result_is_made_with_what_it_lies_in(tmp_path: Path) -> None:
    made = onnxq.quantize(residual(), feeds_for(residual()), output=tmp_path / "new" / "out")
    assert made.files == (tmp_path / "new" / "out" / "model_onnxruntime.onnx",) and made.files[0].is_file()


def test_what_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "v0.1").touch()
    with pytest.raises(OutputError, match=r"file': cannot be made: there is a file of that name"):
        require_folder(tmp_path / "file" / "out")
    with pytest.raises(OutputError, match=r"nowhere.*does not exist"):
        require_folder(tmp_path / "nowhere" / "q.onnx")
    for name in ("v0.1", "q.onnx"):
        with pytest.raises(OptionError, match="is no folder"):
            onnxq.quantize_all(residual(), feeds_for(residual()), backends=["snpe", "tvm"], output=tmp_path / name)


def test_a_result_is_not_written_over_what_it_is_made_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, data = residual(), feeds_for(residual())
    path, array, known = tmp_path / "m.onnx", tmp_path / "d.npz", tmp_path / "s.npz"
    onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    (name,) = data[0]
    np.savez(array, **{name: np.concatenate([feed[name] for feed in data])})  # type: ignore[arg-type]
    statistics = onnxq.calibrate(path, array, output=known)
    every = onnxq.Options(placement="all")
    quantized = onnxq.quantize(path, statistics=statistics, output=tmp_path / "q.onnx", options=every)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()}
    monkeypatch.setattr(import_module("onnxq.quantize"), "observe", lambda *_: pytest.fail("it calibrated"))
    weights = tmp_path / "w.bin"
    for target in (weights, array):
        with pytest.raises(OutputError, match=r"(is|are) read"):
            onnxq.quantize(path, array, output=target)
    for target in (path, weights, array):
        with pytest.raises(OutputError, match=r"(is|are) read"):
            onnxq.search(path, array, max_drop=1, output=target)
        with pytest.raises(OutputError, match=r"(is|are) read"):
            onnxq.finetune(tmp_path / "q.onnx", array, teacher=path, steps=1, output=target)
        with pytest.raises(OutputError, match=r"(is|are) read"):
            dynamic.rewrite(path, array, output=target)
    for target in (weights, array):
        with pytest.raises(OutputError, match=r"(is|are) read"):
            onnxq.calibrate(path, array, output=target)
    with pytest.raises(OutputError, match="belongs to the model that is read"):
        quantized.save(weights)
    with pytest.raises(OutputError, match="this file is the statistics that are read"):
        onnxq.quantize(path, statistics=known, output=known)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()} == before
    assert quantized.save(tmp_path / "q.onnx") == [tmp_path / "q.onnx"]  # an earlier result is replaced


def test_the_command_line_spares_the_data_file_of_a_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(residual(), "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    (feeds,) = feeds_for(residual())[:1]
    np.savez("d.npz", **feeds)  # type: ignore[arg-type]
    before = Path("w.bin").read_bytes()
    assert main(["quantize", "m.onnx", "--data", "d.npz", "-o", "w.bin", "-q"]) == 1
    assert "belongs to the model that is read" in capsys.readouterr().err
    assert Path("w.bin").read_bytes() == before
