"""What is left behind when a run ends early: every stage against every way to end it.

The runs are processes of their own; a data function that signals its own process, or waits to be killed, decides when.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxq import Options, calibrate, quantize
from onnxq.calibration.statistics import Statistics
from tests.contract import infer
from tests.models import build, images, normal

__all__ = ["contents", "net"]

SAMPLES = 6
DATA = """\
import os, signal, time
import numpy as np

def feeds(stop=-1, how="none"):
    rng = np.random.default_rng(0)
    for k in range({samples}):
        if k == stop:
            open("reached", "w").close()
            if how == "raise":
                raise RuntimeError("a broken disk")
            if how == "wait":
                time.sleep(600)
            os.kill(os.getpid(), getattr(signal, how))
            time.sleep(60)
        yield {{"x": rng.standard_normal((1, 8, 8, 8)).astype(np.float32)}}

def sound():
    return feeds()

{functions}
"""
STOPS = [(how, k) for how in ("SIGINT", "SIGKILL", "SIGTERM", "raise", "wait") for k in (0, 3, SAMPLES - 1)]


def net() -> onnx.ModelProto:
    return build(
        """(float[1, 8, 8, 8] x) => (float[1, 16, 4, 4] y) {
            [c1] a = Conv (x, w)
            [r] r = Relu (a)
            [c2] y = Conv (r, v)
        }""",
        w=normal(16, 8, 3, 3),
        v=normal(16, 16, 3, 3, seed=1),
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a model, its quantized form, and data functions named after how they end."""
    onnx.save(net(), tmp_path / "m.onnx")
    functions = "\n".join(f"def {how}_{k}():\n    return feeds({k}, {how!r})\n" for how, k in STOPS)
    (tmp_path / "data.py").write_text(DATA.format(samples=SAMPLES, functions=functions))
    return tmp_path


def contents(folder: Path) -> dict[str, str]:
    """Digest of every file; Python's own caches left out."""
    found = (p for p in sorted(folder.rglob("*")) if p.is_file() and "__pycache__" not in p.parts)
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in found}


def command(verb: str, function: str, output: str) -> list[str]:
    words = {
        "calibrate": ["calibrate", "m.onnx"],
        "quantize": ["quantize", "m.onnx"],
        "finetune": ["finetune", "q.onnx", "--float", "m.onnx", "--steps", "4"],
    }[verb]
    return [sys.executable, "-m", "onnxq", *words, "--data", f"data.py:{function}", "-o", output]


def start(folder: Path, verb: str, function: str, output: str) -> subprocess.Popen[str]:
    clean = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command(verb, function, output),
        cwd=folder,
        env=clean,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_interruptible,
    )


def _interruptible() -> None:
    """What runs in the background of a shell ignores Ctrl-C, and hands that on."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def ended(folder: Path, verb: str, how: str, sample: int, output: str) -> tuple[int, str]:
    """Exit code and what was said on stderr by a run that ends at a sample; ``wait`` is killed from outside."""
    process = start(folder, verb, f"{how}_{sample}", output)
    if how == "wait":
        limit = time.monotonic() + 600
        while not (folder / "reached").exists():
            assert process.poll() is None and time.monotonic() < limit, process.communicate()
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    _, errors = process.communicate(timeout=600)
    assert (folder / "reached").exists(), f"the run ended before its time: {errors}"
    (folder / "reached").unlink()
    return process.returncode, errors


CODES = {
    "SIGINT": {130},
    "SIGTERM": {-signal.SIGTERM, 128 + signal.SIGTERM},
    "SIGKILL": {-signal.SIGKILL},
    "wait": {-signal.SIGKILL},
    "raise": {1},
}
SUFFIX = {"calibrate": "s.npz", "quantize": "out.onnx", "finetune": "out.onnx"}


@pytest.mark.parametrize(
    ("verb", "how", "sample", "before"),
    [
        ("calibrate", "SIGINT", 3, None),
        ("calibrate", "SIGINT", 3, b"of the user"),
        ("calibrate", "SIGTERM", 3, b"of the user"),
        ("calibrate", "SIGKILL", SAMPLES - 1, None),
        ("calibrate", "raise", 3, b"of the user"),
        ("quantize", "SIGINT", 0, None),
        ("quantize", "SIGINT", SAMPLES - 1, b"of the user"),
        ("quantize", "wait", 3, b"of the user"),
        ("quantize", "raise", SAMPLES - 1, None),
    ],
)
def test_nothing_is_left_or_touched(folder: Path, verb: str, how: str, sample: int, before: bytes | None) -> None:
    output = folder / SUFFIX[verb]
    if before is not None:
        output.write_bytes(before)
    there = contents(folder)
    code, errors = ended(folder, verb, how, sample, output.name)
    assert code in CODES[how], errors
    assert contents(folder) == there
    assert "Traceback" not in errors
    if how == "raise":
        assert f"sample {sample}" in errors and "a broken disk" in errors
    if how == "SIGINT":
        assert "interrupted" in errors


@pytest.mark.parametrize(
    ("how", "sample"),
    [("SIGINT", 3), ("raise", 3), pytest.param("wait", SAMPLES - 1, marks=pytest.mark.slow)],
)
def test_finetune(folder: Path, how: str, sample: int) -> None:
    pytest.importorskip("torch")
    quantize(net(), images(1, 8, 8, 8, samples=2), options=Options(placement="all"), output=folder / "q.onnx")
    there = contents(folder)
    code, errors = ended(folder, "finetune", how, sample, "out.onnx")
    assert code in CODES[how], errors
    assert contents(folder) == there
    assert "Traceback" not in errors


def test_training_that_was_killed_goes_on(folder: Path) -> None:
    """The state is whole at any moment, and the run that takes it up ends as every run does."""
    pytest.importorskip("torch")
    quantize(net(), images(1, 8, 8, 8, samples=2), options=Options(placement="all"), output=folder / "q.onnx")
    words = command("finetune", "sound", "out.onnx")
    words[words.index("--steps") + 1] = "1000000"
    words += ["--resume", "state.npz"]
    long = [*words, "--minutes", "0.5"]
    process = subprocess.Popen(long, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    limit = time.monotonic() + 600
    while not (folder / "state.npz").exists():
        assert process.poll() is None and time.monotonic() < limit
        time.sleep(0.02)
    process.kill()
    process.wait()
    with np.load(folder / "state.npz") as state:
        done = int(state["step"])
        assert done > 0 and all(np.isfinite(state[name]).all() for name in state.files if "/" in name)
    assert not (folder / "out.onnx").exists()
    again = subprocess.run([*words, "--minutes", "0.02"], cwd=folder, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert infer(onnx.load(folder / "out.onnx"), images(1, 8, 8, 8, samples=1), optimize=True)
    assert int(np.load(folder / "state.npz")["step"]) >= done


def test_a_killed_run_can_be_run_again(folder: Path) -> None:
    """What a run that was killed leaves does not disturb the next one."""
    ended(folder, "calibrate", "SIGKILL", 3, "s.npz")
    done = start(folder, "calibrate", "sound", "s.npz")
    _, errors = done.communicate(timeout=600)
    assert done.returncode == 0, errors
    assert Statistics.load(folder / "s.npz").samples == SAMPLES
    assert {name for name in contents(folder) if not name.startswith("data")} == {"m.onnx", "s.npz"}


def test_two_runs_write_the_same_output(folder: Path) -> None:
    runs = [start(folder, "quantize", "sound", "out.onnx") for _ in range(2)]
    for process in runs:
        _, errors = process.communicate(timeout=600)
        assert process.returncode == 0, errors
    assert set(contents(folder)) == {"data.py", "m.onnx", "out.onnx"}
    onnx.checker.check_model(onnx.load(folder / "out.onnx"), full_check=True)


def test_two_threads_write_the_same_statistics(tmp_path: Path) -> None:
    feeds, faults = images(1, 8, 8, 8, samples=2), list[Exception]()

    def run() -> None:
        try:
            calibrate(net(), feeds, output=tmp_path / "s.npz")
        except Exception as error:
            faults.append(error)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert list(contents(tmp_path)) == ["s.npz"]
    assert Statistics.load(tmp_path / "s.npz").samples == 2
