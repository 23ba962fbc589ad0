"""Ask a runtime in a process of its own: vendor libraries may crash, hang, or need another Python environment.

The script of a runtime is called as ``python WORKER REQUEST``, REQUEST a JSON file::

    {"model": path, "beside": path, "inputs": [names], "samples": [paths], "results": folder, "options": {...}}

``beside`` is a model to be timed beside the first one, on one thread, or null. A sample is an ``.npz`` file with the
arrays ``0``, ``1`` ... of the inputs, bfloat16 and 8-bit floats as float32. The script writes ``report.json`` into the
results folder: ``version``, the names ``outputs``, lists of strings ``integer``, ``floating``, ``remarks``, ``files``,
and where it was timed the two ``times`` in seconds, with what is to be said of them, ``timed``. Where it computes it
also writes ``0.npz``, ``1.npz`` ... with the arrays ``0``, ``1`` ... of the outputs. Called as ``python WORKER
--version`` it prints the version. Exit code 3 says that the runtime is not installed, 4 that it refuses the model, with
the reason on the last line of stderr.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxq.errors import VerificationError
from onnxq.runtimes.held_signals import signals_wait
from onnxq.runtimes.runtime import Examination, Runtime

__all__ = ["examine", "interpreter", "missing", "require"]

MISSING = 3
"""Exit code of a script whose runtime is not installed."""
REFUSED = 4
"""Exit code of a script whose runtime does not take the model."""
UNFIT = 5
"""Exit code of a script whose runtime does not take the samples."""
_BEAT = 1.0
"""Seconds between two looks at how far a script is."""
_SAID = 8
"""Lines of what a runtime wrote that a message holds."""
_NO_MODULE = ("ImportError: ", "ModuleNotFoundError: ")
"""How the last line begins where the script could not import what it needs: that is no fault of the artifact."""
_UNFIT = "Give samples of the sizes that it was written for"
_REFUSED = "Leave what it means in float (--exclude NODE, named as in the model), or cut out what is float already"
_OF_ANOTHER = "If another tool than onnxq wrote it: 'onnxq deploy' writes a quantized model for a target"
_SIMULATION = "; or do without it: verify --simulation"


def interpreter(runtime: Runtime) -> str:
    """The Python that runs a runtime's script: that of ``ONNXQ_<NAME>_PYTHON``, else this one."""
    return os.environ.get(f"ONNXQ_{runtime.name.upper()}_PYTHON") or sys.executable


def missing(runtime: Runtime) -> str | None:
    """Why a runtime cannot be used here, ``None`` where it can."""
    try:
        done = _call(runtime, ["--version"], timeout=120.0)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{interpreter(runtime)}: {getattr(error, 'strerror', None) or error}"
    if done.returncode == 0:
        return None
    return _last_line(done.stderr) or f"it ended with code {done.returncode}"


def require(runtime: Runtime) -> None:
    """Refuse to go on without a runtime, before hours of work.

    Raises:
        VerificationError: it is not installed.
    """
    why = missing(runtime)
    if why is not None:
        raise _not_installed(runtime, why)


def _not_installed(runtime: Runtime, why: str, otherwise: str = "") -> VerificationError:
    variable = f"ONNXQ_{runtime.name.upper()}_PYTHON"
    if why.endswith("No module named 'numpy'"):
        python = shlex.quote(interpreter(runtime))
        what = f"{runtime.title} cannot be asked: the Python that is to run it, {python}, has no numpy"
        hint = f"{python} -m pip install numpy, or name another Python by {variable}{otherwise}"
        return VerificationError(what, hint=hint)
    hint = f"{runtime.install}, here or in another environment whose Python is named by {variable}{otherwise}"
    return VerificationError(f"{runtime.title} is not installed ({why})", hint=hint)


def examine(
    runtime: Runtime,
    model: Path,
    samples: Sequence[Mapping[str, NDArray[Any]]] = (),
    *,
    beside: Path | None = None,
    timeout: float = 900.0,
    advance: Callable[[int], None] = lambda done: None,
    **options: Any,
) -> Examination:
    """Load an artifact in its runtime, and run it where the runtime can.

    Args:
        runtime: which one.
        model: path of the artifact's ONNX model.
        samples: feeds.
        beside: another model to time the artifact beside, where the runtime is one that is timed and there are samples.
        timeout: seconds for all of it; more than the system can wait for are no limit.
        advance: called about every second, while the runtime works, with the number of samples that it has computed.
        **options: see ``Runtime.options``.

    Raises:
        VerificationError: the runtime is not installed, rejects the artifact, crashes, or takes too long; or the file
            that it runs is not there.
    """
    if runtime.ending and not (file := model.with_suffix(runtime.ending)).is_file():
        raise VerificationError(
            f"{runtime.title} runs '{file.name}' beside it, which is not there",
            where=f"'{model}'",
            hint=f"onnxq quantize and onnxq deploy write the two, where the format is one with {runtime.ending}",
        )
    with tempfile.TemporaryDirectory(prefix="onnxq-") as name:
        folder = Path(name)
        names = list(samples[0]) if samples else []
        paths = []
        for index, sample in enumerate(samples):
            paths.append(str(folder / f"sample{index}.npz"))
            arrays: dict[str, Any] = {str(k): _plain(np.asarray(sample[n])) for k, n in enumerate(names)}
            np.savez(paths[-1], **arrays)
        results = folder / "results"
        results.mkdir()
        request = {
            "model": str(model.absolute()),
            "beside": str(beside.absolute()) if beside is not None and runtime.timed and samples else None,
            "inputs": names,
            "samples": paths,
            "results": str(results),
            "options": {**runtime.options, **options},
        }
        (folder / "request.json").write_text(json.dumps(request))
        try:
            arguments = [str(folder / "request.json")]
            done = _call(runtime, arguments, timeout, folder, lambda: advance(len(list(results.glob("*.npz")))))
        except subprocess.TimeoutExpired as error:
            raise VerificationError(f"{runtime.title} took more than {timeout:g} s", where=f"'{model}'") from error
        except OSError as error:
            why = f"{interpreter(runtime)}: {error.strerror or error}"
            raise _not_installed(runtime, why, _SIMULATION) from error
        if done.returncode == MISSING or (done.returncode and _last_line(done.stderr).startswith(_NO_MODULE)):
            raise _not_installed(runtime, _last_line(done.stderr), _SIMULATION)
        if done.returncode or not (results / "report.json").is_file():
            told = done.returncode in (REFUSED, UNFIT)
            said = _last_line(done.stderr) if told else _without_tracebacks(done.stderr)
            if done.returncode == UNFIT:
                how, hint = "does not take the samples", _UNFIT
            elif done.returncode < 0:
                how, hint = f"crashed (signal {-done.returncode})", ""
            else:
                how, hint = "does not take the artifact", _REFUSED if done.returncode == REFUSED else _OF_ANOTHER
            raise VerificationError(f"{runtime.title} {how}: {said}", where=f"'{model}'", hint=hint or None)
        return _read(runtime, results, len(samples))


def _plain(array: NDArray[Any]) -> NDArray[Any]:
    """What files of NumPy's lose: bfloat16 and 8-bit floats as float32, which holds them exactly; objects as text."""
    if array.dtype == object:
        return array.astype(str)
    return array.astype(np.float32) if array.dtype.name.startswith(("bfloat16", "float8")) else array


def _call(
    runtime: Runtime,
    arguments: list[str],
    timeout: float,
    folder: Path | None = None,
    look: Callable[[], None] = lambda: None,
) -> subprocess.CompletedProcess[str]:
    """Run the script of a runtime in a folder, some leave files in it; and look how far it is, now and then.

    Temporary files are made there too: a script that is killed, or crashes, leaves its own. It is killed with the
    processes that it has started. Folders of ``PYTHONPATH`` count from here.

    Raises:
        TimeoutExpired: it took longer, and was killed.
        OSError: there is no such Python.
    """
    python = interpreter(runtime)
    command = [os.path.abspath(python) if os.sep in python else python, str(runtime.worker), *arguments]
    here = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}  # scripts share a module
    if here.get("PYTHONPATH"):  # an empty one is none
        here["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, here["PYTHONPATH"].split(os.pathsep)))
    if folder is not None:
        here |= dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folder))
    process: subprocess.Popen[str] | None = None
    try:
        with signals_wait():  # a process that nobody knows of would go on by itself
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=here,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                errors="replace",  # a runtime written in C++ says what it wants
                start_new_session=True,
            )
        said, complained = _heard(process, timeout, look)
    except BaseException:
        if process is not None:
            _kill(process)
        raise
    return subprocess.CompletedProcess(command, process.returncode, said, complained)


def _heard(process: subprocess.Popen[str], timeout: float, look: Callable[[], None]) -> tuple[str, str]:
    """What a process says until it ends; it is looked how far it is, now and then.

    Raises:
        TimeoutExpired: it takes longer.
    """
    end = time.monotonic() + timeout
    while True:
        left = end - time.monotonic()
        try:
            return process.communicate(timeout=max(0.0, min(left, _BEAT)))
        except subprocess.TimeoutExpired:
            if left <= _BEAT:
                raise
            look()


def _kill(process: subprocess.Popen[str]) -> None:
    """End a process and those that it has started, and wait until it is gone."""
    if sys.platform != "win32":
        with contextlib.suppress(OSError):  # it has ended
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    with process:  # closes its pipes
        pass


def _read(runtime: Runtime, results: Path, samples: int) -> Examination:
    report = json.loads((results / "report.json").read_text())
    outputs: list[dict[str, NDArray[Any]]] = []
    if runtime.runs:
        for index in range(samples):
            with np.load(results / f"{index}.npz", allow_pickle=False) as arrays:
                outputs.append({name: arrays[str(k)] for k, name in enumerate(report["outputs"]) if str(k) in arrays})
    return Examination(
        runtime=runtime.name,
        version=str(report["version"]),
        outputs=tuple(outputs),
        integer=tuple(report.get("integer", ())),
        floating=tuple(report.get("floating", ())),
        remarks=tuple(report.get("remarks", ())),
        files=tuple(report.get("files", ())),
        times=tuple(report["times"]) if report.get("times") else None,
        timed=str(report.get("timed", "")),
    )


def _without_tracebacks(text: str) -> str:
    """The last lines that a runtime wrote, without those that say where in its script, or in its own, that was."""
    lines: list[str] = []
    inside = False
    for line in text.strip().splitlines():
        inside = line.startswith("Traceback (most recent call last)") or (inside and line.startswith(" "))
        lines += [] if inside or not line.strip() else [line]
    return "\n".join(lines[-_SAID:])


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else ""
