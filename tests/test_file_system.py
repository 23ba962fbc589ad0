"""Names that cannot be looked at are errors of onnxq, whatever they are to be."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxq
from onnxq import dynamic
from onnxq.cli import main
from onnxq.demo.data import MODEL
from onnxq.file_system import is_there, whole_file, write_text
from onnxq.weight_only import quantize_weights
from tests.models import build, feeds_for, normal
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


WRITTEN: dict[str, Callable[[Path], Any]] = {
    "model": lambda path: quantized().save(path.with_name(f"{path.name}.onnx")),
    "statistics": lambda path: onnxq.calibrate(
        residual(), feeds_for(residual()), output=path.with_name(f"{path.name}.npz")
    ),
    "text": lambda path: write_text(path.with_name(f"{path.name}.txt"), "text"),
    "search": lambda path: onnxq.search(
        residual(),
        feeds_for(residual()),
        output=path.with_name(f"{path.name}.onnx"),
        max_drop=9,
        folder=path.parent / "s",
    ),
    "dynamic": lambda path: dynamic.rewrite(wide(), output=path.with_name(f"{path.name}.onnx")),
    "weight_only": lambda path: quantize_weights(wide(), path.with_name(f"{path.name}.onnx")),
}


def wide() -> onnx.ModelProto:
    return build("(float[1, 64] x) => (float[1, 64] y) { y = MatMul (x, w) }", w=normal(64, 64))


@pytest.mark.parametrize("what", WRITTEN)
def test_a_name_may_be_as_long_as_a_file_system_allows(what: str, tmp_path: Path) -> None:
    """255 bytes mostly: 83 letters of Chinese."""
    (tmp_path / "out").mkdir()
    WRITTEN[what](tmp_path / "out" / f"{'模' * 83}")
    (written,) = (path for path in (tmp_path / "out").iterdir() if path.is_file())
    assert len(written.name.encode()) in (253, 254) and written.stat().st_size


@pytest.mark.parametrize("what", WRITTEN)
def test_a_link_stays_and_what_it_leads_to_is_written(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In another file system, too, where a file cannot be moved to: each folder here stands for one."""
    replace = os.replace

    def within_one(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
        here, there = (Path(path).relative_to(tmp_path).parts[0] for path in (source, target))
        if here != there:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        replace(source, target)

    monkeypatch.setattr(os, "replace", within_one)
    ending = {"statistics": ".npz", "text": ".txt"}.get(what, ".onnx")
    link, target = tmp_path / "here" / f"link{ending}", tmp_path / "there" / f"target{ending}"
    for folder in (link.parent, target.parent):
        folder.mkdir()
    target.write_text("before")
    target.chmod(0o640)
    link.symlink_to(target)
    WRITTEN[what](link.with_suffix(""))
    assert link.is_symlink() and target.read_bytes() != b"before"
    assert target.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in target.parent.iterdir()] == [target.name]
    assert {path.name for path in link.parent.iterdir()} <= {link.name, "s"}, "a search keeps its folder"


def test_a_file_is_written_whole_or_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("before")
    with pytest.raises(onnxq.OutputError, match=r"a\.txt': cannot be written: No space left"), whole_file(path) as part:
        part.write_text("hal")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(KeyboardInterrupt), whole_file(path) as part:
        part.write_text("hal")
        raise KeyboardInterrupt
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]


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
    with pytest.raises(onnxq.ModelError, match="the name of the model is empty"):
        onnxq.plan("")
    with pytest.raises(onnxq.OutputError, match="the name of the artifact is empty"):
        onnxq.verify("", np.zeros((1, 1), np.float32))


def test_what_is_there_and_no_file_is_not_called_missing() -> None:
    with pytest.raises(onnxq.OutputError, match="it is no file that can be read whole"):
        onnxq.verify(os.devnull)


def test_a_file_is_no_folder_to_write_into(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(onnxq.OutputError, match="a file of that name exists, so no folder can be made"):
        quantized(output=tmp_path / "file" / "q.onnx")
