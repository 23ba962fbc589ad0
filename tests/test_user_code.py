"""Functions in files of the user's: found with what lies beside them, and apart from onnxq's own output."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from onnxq.errors import DataError, MetricError, OnnxqError
from onnxq.user_code import function_of, split_name


def test_the_modules_beside_it_are_found_and_what_it_prints_goes_to_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "beside_it.py").write_text("ANSWER = 42\n")
    (tmp_path / "code.py").write_text("from beside_it import ANSWER\nprint('hello')\ndef f(): return ANSWER\n")
    before = list(sys.path)
    assert function_of(tmp_path / "code.py", "f", where="here", error=DataError)() == 42
    assert sys.path == before
    assert capsys.readouterr() == ("", "hello\n")


@pytest.mark.parametrize("error", [DataError, MetricError])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def g(): pass", "the file has no function 'f'. It has: 'g'"),
        ("1 / 0", "raised ZeroDivisionError"),
        ("import sys; sys.exit('no')", "raised SystemExit: no"),
    ],
)
def test_faults_are_errors_of_the_class_asked_for(
    text: str, said: str, error: type[OnnxqError], tmp_path: Path
) -> None:
    (tmp_path / "code.py").write_text(text)
    with pytest.raises(error, match=said) as caught:
        function_of(tmp_path / "code.py", "f", where="here", error=error)
    assert caught.value.where == "here"


def test_a_name_stands_behind_a_python_file_only() -> None:
    assert split_name("a.py:f") == (Path("a.py"), "f")
    assert split_name("c:data.npz") == (Path("c:data.npz"), None)
    assert split_name("a.py") == (Path("a.py"), None)
