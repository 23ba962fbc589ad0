"""A vendor's runtime in a process of its own: what it needs, says, leaves behind, and how it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnxq.errors import VerificationError
from onnxq.runtimes.child import examine, interpreter, missing
from onnxq.runtimes.runtime import Runtime


def _runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Runtime:
    (tmp_path / "run_made_up.py").write_text(script)
    monkeypatch.setattr("onnxq.runtimes.runtime.WORKERS", tmp_path)
    return Runtime("made_up", "a made-up runtime", ("made-up==1",))


def test_a_runtime_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Runtime("r", "a runtime", ("a==1", "b<2")).install == "pip install a==1 'b<2'"
    runtime = _runtime(tmp_path, monkeypatch, "import sys\n"
                       "print('No module named made_up', file=sys.stderr); sys.exit(3)")  # fmt: skip
    assert missing(runtime) == "No module named made_up"
    with pytest.raises(VerificationError, match=r"not installed.*\n?.*pip install made-up==1.*ONNXQ_MADE_UP_PYTHON"):
        examine(runtime, tmp_path / "m.onnx")


def test_a_runtime_that_crashes_or_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crash = _runtime(tmp_path, monkeypatch, "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)")
    with pytest.raises(VerificationError, match=r"crashed \(signal 11\)"):
        examine(crash, tmp_path / "m.onnx")
    hang = _runtime(tmp_path, monkeypatch, "import time\ntime.sleep(60)")
    with pytest.raises(VerificationError, match=r"more than 0\.5 s"):
        examine(hang, tmp_path / "m.onnx", timeout=0.5)
    script = "import sys\nprint('slow', file=sys.stderr)\nraise ValueError('no such operator')"
    refuse = _runtime(tmp_path, monkeypatch, script)
    with pytest.raises(VerificationError) as caught:
        examine(refuse, tmp_path / "m.onnx")
    assert "does not take the artifact: slow\nValueError: no such operator" in str(caught.value)
    assert "'onnxq deploy' writes a quantized model" in str(caught.value)


@pytest.mark.parametrize("seconds", [float("inf"), 1e300])
def test_a_runtime_may_take_as_long_as_it_likes(
    seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = _runtime(tmp_path, monkeypatch, "import sys\nprint('that will not do', file=sys.stderr)\nsys.exit(4)")
    with pytest.raises(VerificationError, match="that will not do"):
        examine(done, tmp_path / "m.onnx", timeout=seconds)


def test_how_far_a_runtime_is_can_be_seen_while_it_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script ends only once somebody has seen that the first sample is done."""
    script = f"""import json, pathlib, sys, time
request = json.loads(pathlib.Path(sys.argv[1]).read_text())
(pathlib.Path(request["results"]) / "0.npz").touch()
while not pathlib.Path({str(tmp_path / "seen")!r}).exists():
    time.sleep(0.01)
sys.exit("that is all")"""
    runtime = _runtime(tmp_path, monkeypatch, script)

    def advance(done: int) -> None:
        if done == 1:
            (tmp_path / "seen").touch()

    with pytest.raises(VerificationError, match="that is all"):
        examine(runtime, tmp_path / "m.onnx", [{"x": np.zeros(2)}] * 2, advance=advance, timeout=300)


def test_a_runtime_that_writes_what_is_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = "import sys\nsys.stderr.buffer.write(b'\\377\\376 bad node\\n')\nsys.exit(1)"
    with pytest.raises(VerificationError, match=r"does not take the artifact: .* bad node"):
        examine(_runtime(tmp_path, monkeypatch, script), tmp_path / "m.onnx")


def test_what_a_runtime_refuses_is_said_in_its_own_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = "import sys\nprint('much else\\nit has no Foo for node 7', file=sys.stderr)\nsys.exit(4)"
    with pytest.raises(VerificationError) as caught:
        examine(_runtime(tmp_path, monkeypatch, script), tmp_path / "m.onnx")
    said = str(caught.value)
    assert "does not take the artifact: it has no Foo for node 7" in said and "much else" not in said
    assert "--exclude NODE" in said


def test_another_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = _runtime(tmp_path, monkeypatch, "")
    assert interpreter(runtime) == sys.executable
    monkeypatch.setenv("ONNXQ_MADE_UP_PYTHON", str(tmp_path / "nowhere"))
    assert "nowhere" in (missing(runtime) or "")
    with pytest.raises(VerificationError, match=r"not installed \(.*nowhere: No such file"):
        examine(runtime, tmp_path / "m.onnx")


def test_temporary_files_of_a_runtime_that_is_killed_are_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no time left to remove them itself."""
    script = "import os, signal, tempfile\ntempfile.mkdtemp()\nos.kill(os.getpid(), signal.SIGKILL)"
    runtime, temporary = _runtime(tmp_path, monkeypatch, script), tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    with pytest.raises(VerificationError, match="crashed"):
        examine(runtime, tmp_path / "m.onnx")
    assert not list(temporary.iterdir())


def test_what_a_runtime_has_started_is_killed_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler, say: it would compute on."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    told = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    started = f"import time; f = open({str(pipe)!r}, 'w', 1); f.write('here'); f.flush(); time.sleep(30); f.write('on')"
    script = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {started!r}])"

    def interrupt(_: int) -> None:
        with contextlib.suppress(BlockingIOError):
            if os.read(told, 4) == b"here":
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        examine(_runtime(tmp_path, monkeypatch, script), tmp_path / "m.onnx", advance=interrupt)
    os.set_blocking(told, True)
    assert os.read(told, 4) == b""
    os.close(told)


def test_folders_of_modules_count_from_where_onnxq_was_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = _runtime(tmp_path, monkeypatch, "import sys, mine\nsys.exit(mine.SAID)")
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "mine.py").write_text("SAID = 'found'")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "modules")
    with pytest.raises(VerificationError, match="does not take the artifact: found"):
        examine(runtime, tmp_path / "m.onnx")


def test_no_folders_of_modules_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python takes an empty PYTHONPATH for none: what lies where onnxq was called must not shadow a runtime."""
    runtime = _runtime(tmp_path, monkeypatch, "import mine")
    (tmp_path / "called").mkdir()
    (tmp_path / "called" / "mine.py").write_text("raise SystemExit('shadowed')")
    monkeypatch.chdir(tmp_path / "called")
    monkeypatch.setenv("PYTHONPATH", "")
    with pytest.raises(VerificationError, match="No module named 'mine'"):
        examine(runtime, tmp_path / "m.onnx")


def test_what_a_runtime_leaves_in_its_working_folder_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RKNN-Toolkit2 writes constants there. A Python named from where onnxq was called is found all the same."""
    runtime = _runtime(tmp_path, monkeypatch, "import sys\nopen('left.npy', 'w').close()\nsys.exit('left')")
    (tmp_path / "python").symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ONNXQ_MADE_UP_PYTHON", "./python")
    with pytest.raises(VerificationError, match="does not take the artifact: left"):
        examine(runtime, tmp_path / "m.onnx")
    assert not (tmp_path / "left.npy").exists()


def test_an_interpreter_without_what_the_script_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment is at fault then, not the artifact."""
    runtime = _runtime(tmp_path, monkeypatch, "import sys\nsys.modules['numpy'] = None\nimport common")
    (tmp_path / "common.py").write_text("raise ModuleNotFoundError(\"No module named 'numpy'\")")
    with pytest.raises(VerificationError, match=r"the Python .*, has no numpy") as caught:
        examine(runtime, tmp_path / "m.onnx")
    for part in (sys.executable, "-m pip install numpy", "ONNXQ_MADE_UP_PYTHON", "--simulation"):
        assert part in str(caught.value)
    (tmp_path / "common.py").write_text("import made_up_dependency")
    with pytest.raises(VerificationError, match=r"not installed \(.*made_up_dependency"):
        examine(runtime, tmp_path / "m.onnx")


@pytest.mark.skipif(os.name != "posix", reason="groups of processes are POSIX's")
def test_ctrl_c_while_a_runtime_is_started_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hang = _runtime(tmp_path, monkeypatch, "import time\ntime.sleep(60)")
    started: list[subprocess.Popen[str]] = []

    class Interrupted(subprocess.Popen[str]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(self)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("onnxq.runtimes.child.subprocess.Popen", Interrupted)
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)  # processes of parallel tests ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            examine(hang, tmp_path / "m.onnx")
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, usual)
    assert [process.returncode for process in started] == [-signal.SIGKILL]
