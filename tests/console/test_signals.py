"""A run that is told to end by another signal than that of Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from onnxq.demo.data import MODEL

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")

RUNTIME = "#!/bin/sh\necho $$ > {folder}/child\nexec sleep 600\n"


def start(folder: Path, *more: str, ignored: bool = False) -> subprocess.Popen[str]:
    """Verify in a runtime that takes ten minutes; back once it has begun, with its process's number in ``child``."""
    runtime = folder / "python"
    runtime.write_text(RUNTIME.format(folder=folder))
    runtime.chmod(0o755)
    (folder / "tmp").mkdir()
    np.save(folder / "data.npy", np.zeros((2, 1, 24, 24), np.float32))
    process = subprocess.Popen(
        [sys.executable, "-m", "onnxq", "verify", str(MODEL), "--data", f"{folder}/data.npy", *more],
        env={**os.environ, "TMPDIR": str(folder / "tmp"), "ONNXQ_ONNXRUNTIME_PYTHON": str(runtime)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL) and None,
    )
    limit = time.monotonic() + 600
    while not (folder / "child").exists() or not (folder / "child").read_text().strip():
        assert process.poll() is None and time.monotonic() < limit, process.communicate()
        time.sleep(0.02)
    return process


def ends(number: int) -> bool:
    """Whether a process is gone soon: one that was killed is there until its parent has heard of it."""
    for _ in range(100):
        try:
            os.kill(number, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_temporary_files_and_the_runtime_end_with_the_run(name: str, tmp_path: Path) -> None:
    process = start(tmp_path)
    assert list((tmp_path / "tmp").glob("onnxq-*"))
    number = getattr(signal, name)
    process.send_signal(number)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 128 + number, err
    assert "onnxq: terminated; nothing half-written is left" in err and "Traceback" not in err
    assert not list((tmp_path / "tmp").glob("onnxq-*"))
    assert ends(int((tmp_path / "child").read_text()))


def test_the_json_document_says_so(tmp_path: Path) -> None:
    process = start(tmp_path, "--json")
    process.terminate()
    out, err = process.communicate(timeout=600)
    assert process.returncode == 143, err
    assert json.loads(out)["error"]["what"] == "terminated"


def test_a_signal_that_is_ignored_stays_so(tmp_path: Path) -> None:
    """As under nohup."""
    process = start(tmp_path, ignored=True)
    process.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    assert process.poll() is None
    process.terminate()
    process.communicate(timeout=600)
    assert process.returncode == 143


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_that_comes_when_all_is_told_changes_nothing(name: str) -> None:
    late = (
        "import atexit, os, signal, sys\n"
        "from onnxq.__main__ import program\n"
        f"atexit.register(lambda: os.kill(os.getpid(), signal.{name}))\n"
        "sys.exit(program())\n"
    )
    command = [sys.executable, "-c", late, "show", str(MODEL), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["kind"] == "model"
