"""Where results go: what cannot be written is found before the work."""

from __future__ import annotations

import errno
import sys
import tempfile
from pathlib import Path

import pytest

import onnxq
from onnxq.errors import OutputError
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
    monkeypatch.setattr(sys.modules["onnxq.quantize"], "observe", lambda *_: pytest.fail("it calibrated"))
    with pytest.raises(OutputError, match=r"q\.onnx': cannot be written, its folder takes no files: no") as raised:
        onnxq.quantize(residual(), feeds_for(residual()), output=tmp_path / "q.onnx")
    assert raised.value.hint == hint


@pytest.mark.parametrize("output", ["q.onnx", "new", "there", "q.d"])
def test_nothing_is_left_of_the_trial(output: str, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    require_folder(tmp_path / output)
    assert [path.name for path in tmp_path.rglob("*")] == ["there"]
