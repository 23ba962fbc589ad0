"""stdout and stderr that are closed or full, interrupts, and other causes that are no fault of onnxq."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

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


@POSIX
@pytest.mark.parametrize("delay", [0.5, 1.0])
def test_interrupts_while_it_starts_are_code_130_without_a_traceback(delay: float, tmp_path: Path) -> None:
    (tmp_path / "d.py").write_text("import time\ndef load():\n    time.sleep(60)\n")
    command = [sys.executable, "-m", "onnxq", "quantize", str(MODEL), "--data", f"{tmp_path}/d.py:load"]
    process = subprocess.Popen(
        [*command, "-o", f"{tmp_path}/q.onnx"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # shells ignore it in the background
    )
    time.sleep(delay)
    for _ in range(3):
        process.send_signal(signal.SIGINT)
        time.sleep(0.02)
    _, err = process.communicate(timeout=60)
    if process.returncode != 130 and "onnxq" not in err:
        pytest.skip("Python itself had not begun")
    # a shell says 130 of both; where it struck code that a library ran through PyRun_String, Python ends by the signal
    assert process.returncode in (130, -signal.SIGINT), err
    assert "onnxq: interrupted" in err or process.returncode == 130, err
    assert "Traceback" not in err


def test_an_error_is_said_once_in_the_words_of_onnxq(tmp_path: Path) -> None:
    """Not by the library that reads the model as well."""
    model = build("(float[2] x) => (float[2] y) { a = Relu (x) \n y = Add (a, nowhere) }")
    onnx.save(model, tmp_path / "m.onnx")
    done = subprocess.run([sys.executable, "-m", "onnxq", "plan", tmp_path / "m.onnx"], capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("onnxq: error: invalid model: ") and "'nowhere'" in done.stderr
