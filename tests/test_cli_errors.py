"""How the command line ends where something is wrong: codes, messages, JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnxq.console.signals import Terminated
from onnxq.demo.data import MODEL, load_digits
from tests.cli import Captured, digits, document, run


@pytest.fixture
def data(tmp_path: Path) -> str:
    return digits(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "code", "kind", "words"),
    [
        (("plan", "none.onnx"), 1, "ModelError", "no such file"),
        (("quantize", MODEL, "-o", "q.onnx"), 2, "UsageError", "--data DATA is missing: give samples, or --statistics"),
        (
            ("quantize", MODEL, "-o", "q.onnx"),
            2,
            "UsageError",
            "weight_only, for tensorrt nvfp4:activations=false",
        ),
        (("plan", MODEL, "--weight-bits", "many"), 2, "UsageError", "argument --weight-bits"),
        (("plant", MODEL), 2, "UsageError", "invalid choice: 'plant'"),
    ],
)
def test_json_of_an_error(arguments: tuple[Any, ...], code: int, kind: str, words: str, capsys: Captured) -> None:
    assert run(*arguments, "--json") == code
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.out.count("\n") == 1
    said = json.loads(captured.out)["error"]
    assert list(said) == ["kind", "what", "where", "hint"]
    assert said["kind"] == kind
    assert words in said["what"]
    assert run(*arguments) == code
    assert capsys.readouterr().out == ""


def test_json_of_an_error_says_where_and_what_to_do(tmp_path: Path, capsys: Captured) -> None:
    np.savez(tmp_path / "d.npz", image=np.zeros((4, 24, 24, 1), np.float32))
    assert run("quantize", MODEL, "--data", tmp_path / "d.npz", "-o", tmp_path / "q.onnx", "--json") == 1
    said = document(capsys)["error"]
    assert said["where"] == "sample 0, input 'image'"
    assert "channels last" in said["hint"]
    assert not (tmp_path / "q.onnx").exists()


def test_an_artifact_that_is_none_says_why_once(tmp_path: Path, data: str, capsys: Captured) -> None:
    assert run("verify", MODEL, "--data", data, "--backend", "snpe") == 1
    err = capsys.readouterr().err
    table = str(MODEL).replace(".onnx", ".encodings")
    assert err.count(table) == 1 and "Errno" not in err
    said = (
        f"as encodings-1.0.0 or encodings-0.6.1 or encodings-2.0.0: '{table}': the table cannot be read: No such file"
    )
    assert said in err


def test_text_is_told_to_be_text(tmp_path: Path, capsys: Captured) -> None:
    np.savez(tmp_path / "text.npz", image=np.array(["a", "b"]))
    assert run("quantize", MODEL, "--data", tmp_path / "text.npz", "-o", tmp_path / "q.onnx") == 1
    assert "input 'image': the data is str32, the model wants float32" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("plan", "none.onnx"), "none.onnx"),
        (("plan", MODEL, "--exclude", "Cnov"), "Did you mean 'Conv'"),
        (("plan", MODEL, "--backend", "onnxruntim"), "onnxruntime"),
        (("plan", MODEL, "--config", "none.toml"), "none.toml"),
        (("show", "none.npz"), "none.npz"),
        (("quantize", MODEL, "--data", "none.npz", "-o", "q.onnx"), "none.npz"),
        (("compare", MODEL, MODEL, "--data", "none.npz"), "error: data 'none.npz': does not exist"),
    ],
)
def test_errors_are_code_1_in_one_line(arguments: tuple[object, ...], words: str, capsys: Captured) -> None:
    assert run(*arguments) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert err.count("\n") == 1
    assert run(*arguments, "-v") == 1
    assert "Traceback" in capsys.readouterr().err


def test_a_bug_is_reported_kindly(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    def broken(*_: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr("onnxq.verbs.backends", broken)
    assert run("backends") == 1
    err = capsys.readouterr().err
    assert "internal error" in err
    assert "Traceback" not in err


def test_an_interrupt_is_code_130(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("onnxq.verbs.backends", stopped)
    assert run("backends") == 130
    assert "interrupted" in capsys.readouterr().err


@pytest.mark.parametrize("kept", ["", "the same command goes on from it"])
@pytest.mark.parametrize(("number", "what"), [(None, "interrupted"), (15, "terminated")])
def test_json_of_an_interrupt_says_what_and_how_to_go_on(
    kept: str, number: int | None, what: str, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """As a search and a training tell it."""

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt(kept) from (None if number is None else Terminated(number))

    monkeypatch.setattr("onnxq.verbs.backends", stopped)
    assert run("backends", "--json") == (130 if number is None else 128 + number)
    captured = capsys.readouterr()
    assert json.loads(captured.out)["error"] == {
        "kind": "KeyboardInterrupt",
        "what": what,
        "where": None,
        "hint": kept or None,
    }
    assert captured.err == f"\nonnxq: {what}; nothing half-written is left{'; ' if kept else ''}{kept}\n"


def test_warnings_are_lines_on_stderr(tmp_path: Path, capsys: Captured) -> None:
    np.savez(tmp_path / "d.npz", image=load_digits().calibration[:12].astype(np.float64))
    arguments = ("calibrate", MODEL, "--data", tmp_path / "d.npz", "-o", tmp_path / "s.npz")
    assert run(*arguments, "--json") == 0
    captured = capsys.readouterr()
    assert "warning: input 'image': the data is float64, cast to float32\n" in captured.err
    json.loads(captured.out)
    assert run(*arguments, "-q") == 0
    assert capsys.readouterr().err == ""


def test_a_reader_that_goes_away_is_no_error() -> None:
    command = [sys.executable, "-m", "onnxq", "plan", str(MODEL)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 141
