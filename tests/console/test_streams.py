"""stdout and stderr that are closed or full, interrupts, and other causes that are no fault of onnxq."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxq
from onnxq.cli import main
from onnxq.console.progress import Silent, make_reporter
from onnxq.demo.data import MODEL
from tests.models import build

POSIX = pytest.mark.skipif(os.name == "nt", reason="closed descriptors and /dev/full are POSIX")


def shell(command: str) -> subprocess.CompletedProcess[str]:
    text = command.replace("onnxq", f"'{sys.executable}' -m onnxq", 1)
    return subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=False)


@POSIX
def test_closed_streams_are_no_error() -> None:
    for closed in (">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"):
        done = shell(f"onnxq plan '{MODEL}' {closed}")
        assert (done.returncode, done.stderr) == (0, ""), closed
    assert "float" in shell(f"onnxq plan '{MODEL}' 2>&-").stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("flags", ["", "--json"])
def test_a_full_stdout_is_one_line(flags: str) -> None:
    done = shell(f"onnxq backends {flags} > /dev/full")
    assert done.returncode == 1
    assert done.stderr == f"onnxq: error: stdout: cannot be written: {os.strerror(errno.ENOSPC)}\n"


def test_python_without_streams_shows_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    monkeypatch.setattr(sys, "stdout", None)
    assert isinstance(make_reporter(), Silent)
    assert onnxq.plan(MODEL).sites


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/tmp/x/0.npz"), "'/tmp/x/0.npz': No space left"),
        (OSError("10 requested and 3 written"), "10 requested and 3 written"),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), "'/x': Permission denied"),
        (FileNotFoundError(2, "No usable temporary directory found in ['/tmp']"), "No usable temporary directory"),
        (MemoryError(), "not enough memory"),
    ],
)
def test_a_cause_outside_is_no_fault_of_onnxq(
    raised: Exception, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any) -> None:
        raise raised

    monkeypatch.setattr("onnxq.verbs.backends", fail)
    assert main(["backends"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("onnxq: error: ") and said in err and "internal" not in err
    assert err.count("\n") == 1


def test_an_interrupt_that_a_library_made_another_error_of_is_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any) -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as stopped:
            raise ImportError("cannot import a C extension") from stopped

    monkeypatch.setattr("onnxq.verbs.backends", fail)
    assert main(["backends"]) == 130
    assert capsys.readouterr().err == "\nonnxq: interrupted; nothing half-written is left\n"


INTERRUPTED = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore it in the background
sys.argv = ["onnxq", "quantize", {model!r}, "--data", {data!r}, "-o", {output!r}]
import runpy
runpy.run_module("onnxq", run_name="__main__", alter_sys=True)
"""


@POSIX
@pytest.mark.parametrize("module", ["onnxq.cli", "numpy", "onnx", "onnx_ir", "onnxruntime", "onnxq.verbs", "onnxq.job"])
def test_interrupts_while_it_starts_are_code_130_without_a_traceback(module: str, tmp_path: Path) -> None:
    """In front of each of the imports that take long; before the command line is there, nothing is said."""
    np.save(tmp_path / "d.npy", np.zeros((2, 1, 24, 24), np.float32))
    words = {"model": str(MODEL), "data": str(tmp_path / "d.npy"), "output": str(tmp_path / "q.onnx")}
    script = INTERRUPTED.format(module=module, **words)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (130, ""), done.stderr
    said = "" if module == "onnxq.cli" else "\nonnxq: interrupted; nothing half-written is left\n"
    assert done.stderr == said
    assert not (tmp_path / "q.onnx").exists()


def test_an_error_is_said_once_in_the_words_of_onnxq(tmp_path: Path) -> None:
    """Not by the library that reads the model as well."""
    model = build("(float[2] x) => (float[2] y) { a = Relu (x) \n y = Add (a, nowhere) }")
    onnx.save(model, tmp_path / "m.onnx")
    done = subprocess.run([sys.executable, "-m", "onnxq", "plan", tmp_path / "m.onnx"], capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("onnxq: error: invalid model: ") and "'nowhere'" in done.stderr
