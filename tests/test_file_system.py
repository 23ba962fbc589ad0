"""Names that cannot be looked at are errors of onnxq, whatever they are to be."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onnxq
from onnxq.cli import main
from onnxq.demo.data import MODEL
from onnxq.file_system import is_there
from tests.models import feeds_for
from tests.targets import residual

LONG = "n" * 300


def quantized(data: Any = None, **options: Any) -> Any:
    return onnxq.quantize(residual(), feeds_for(residual()) if data is None else data, **options)


ASKED: dict[str, Callable[[str], Any]] = {
    "model": lambda name: onnxq.plan(name),
    "data": lambda name: quantized(name),
    "a function": lambda name: quantized(f"{name}.py:f"),
    "output": lambda name: quantized(output=f"{name}.onnx"),
    "a folder": lambda name: quantized(output=name),
    "save": lambda name: quantized().save(f"{name}.onnx"),
    "statistics": lambda name: quantized(statistics=name),
    "library": lambda name: quantized(options=onnxq.Options(custom_op_library=name)),
    "artifact": lambda name: onnxq.verify(name, feeds_for(residual())),
    "show": lambda name: onnxq.show(name),
    "show statistics": lambda name: onnxq.show(f"{name}.npz"),
    "plot": lambda name: onnxq.sensitivity(residual(), feeds_for(residual()), plot=f"{name}.svg"),
    "search": lambda name: onnxq.search(
        residual(), feeds_for(residual()), output="never.onnx", max_drop=1.0, folder=name
    ),
}


@pytest.mark.parametrize("what", ASKED)
@pytest.mark.parametrize("name", [LONG, "a\0b"], ids=["long", "zero byte"])
def test_a_name_that_no_file_can_have(what: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(onnxq.OnnxqError):
        ASKED[what](name)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(os.name != "posix", reason="Windows keeps a folder that a process works in")
def test_a_current_folder_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    np.savez(tmp_path / "d.npz", image=np.ones((4, 1, 24, 24), np.float32))
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert main(["quantize", str(MODEL), "--data", str(tmp_path / "d.npz"), "-o", "q.onnx"]) == 1
    assert capsys.readouterr().err == "onnxq: error: the current folder is gone. Change to another one\n"


def test_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert is_there(tmp_path, onnxq.DataError) and is_there(tmp_path / "file", onnxq.DataError)
    assert not is_there(tmp_path / "none", onnxq.DataError)
    assert not is_there(tmp_path / "file" / "none", onnxq.DataError)
    (tmp_path / "ring").symlink_to(tmp_path / "ring")
    with pytest.raises(onnxq.DataError, match="cannot be looked at"):
        is_there(tmp_path / "ring", onnxq.DataError)


@pytest.mark.skipif(os.name != "posix", reason="names of POSIX")
@pytest.mark.parametrize(
    "words",
    [
        ["plan", LONG],
        ["quantize", str(MODEL), "--data", LONG, "-o", "o.onnx"],
        ["quantize", str(MODEL), "--data", "d.npy", "-o", LONG],
        ["quantize", str(MODEL), "--statistics", LONG, "-o", "o.onnx"],
        ["calibrate", str(MODEL), "--data", "d.npy", "-o", f"{LONG}.npz"],
        ["verify", LONG, "--data", "d.npy"],
        ["demo", "-o", LONG],
    ],
    ids=lambda words: " ".join(word[:12] for word in words),
)
def test_the_command_line_says_so(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("d.npy", np.zeros((2, 1, 24, 24), np.float32))
    assert main(words) == 1
    said = capsys.readouterr().err
    assert "File name too long" in said and "internal" not in said


def test_an_empty_name_is_not_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("one.npy", np.zeros((1, 1), np.float32))
    with pytest.raises(onnxq.DataError, match="the name of the data is empty"):
        quantized("")


def test_a_file_is_no_folder_to_write_into(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(onnxq.OutputError, match="this is a file, not a folder"):
        quantized(output=tmp_path / "file" / "q.onnx")
