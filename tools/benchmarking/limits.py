"""Run a job in a process of its own: under limits of time and memory, its CPU time and peak memory measured.

The parent must stay small: on Linux a child's ``ru_maxrss`` starts at the memory of the process that it was forked
from. So whoever calls this imports neither numpy nor onnxruntime.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["HERE", "Limits", "Outcome", "program", "run_job", "run_limited"]

HERE = {"PYTHONPATH": str(Path(__file__).parent.parent)}
"""Environment in which the modules of this folder are found."""
_KIB = 1 if sys.platform == "darwin" else 1024  # unit of ru_maxrss, bytes
_NO_MEMORY = ("MemoryError", "bad_alloc", "Failed to allocate", "Unable to allocate", "SIGKILL")


@dataclass(frozen=True)
class Limits:
    """What a child may take.

    Attributes:
        seconds: wall time; the child is killed then.
        gigabytes: address space (``RLIMIT_AS``), 10^9 bytes; allocations beyond it fail.
        threads: threads within an operator for every onnxruntime session.
    """

    seconds: float = 300.0
    gigabytes: float = 8.0
    threads: int = 1


@dataclass
class Outcome:
    """What a child did.

    Attributes:
        error: why it failed, one line; None if it did not.
        cpu: user and system seconds, its own children included.
        wall: seconds.
        peak_mb: peak resident memory, 10^6 bytes.
        answer: what it reported.
        output: what it printed, both streams.
    """

    error: str | None
    cpu: float
    wall: float
    peak_mb: float
    answer: dict[str, Any] = field(default_factory=dict)
    output: str = ""


def run_limited(
    command: list[str], limits: Limits, *, env: dict[str, str] | None = None, folder: str | None = None
) -> Outcome:
    """Run a command.

    Args:
        command: program and arguments.
        limits: what it may take.
        env: additional environment variables.
        folder: where it runs; some quantizers litter it.
    """
    size = int(limits.gigabytes * 1e9)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (size, size))

    threads = {name: str(limits.threads) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
    with tempfile.TemporaryFile() as printed:
        start = time.perf_counter()
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**os.environ, **threads, **(env or {})},
            preexec_fn=limit,
            start_new_session=True,
        )
        late = threading.Event()

        def stop() -> None:
            late.set()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)

        timer = threading.Timer(limits.seconds, stop)
        timer.start()
        try:
            _, status, usage = os.wait4(child.pid, 0)
        except BaseException:
            stop()
            raise
        finally:
            timer.cancel()
        wall = time.perf_counter() - start
        child.returncode = os.waitstatus_to_exitcode(status)  # it has been waited for
        printed.seek(0)
        output = printed.read().decode("utf-8", "replace")
    error = None
    if late.is_set():
        error = f"more than {limits.seconds:g} s"
    elif child.returncode < 0:
        error = f"died of {signal.Signals(-child.returncode).name}"
    elif child.returncode:
        error = f"exit code {child.returncode}: {_last_line(output)}"
    return Outcome(error, usage.ru_utime + usage.ru_stime, wall, usage.ru_maxrss * _KIB / 1e6, output=output)


def program(module: str, *arguments: str) -> list[str]:
    """The command that runs a module of this folder, in the environment :data:`HERE`."""
    return [sys.executable, "-m", f"benchmarking.{module}", *arguments]


def run_job(name: str, arguments: dict[str, Any], limits: Limits) -> Outcome:
    """Run a function of :mod:`benchmarking.jobs` in a process of its own.

    Args:
        name: the function.
        arguments: its keyword arguments, JSON-ready.
        limits: what it may take.
    """
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        given = [name, json.dumps(arguments), str(answer), str(limits.threads)]
        outcome = run_limited(program("jobs", *given), limits, env=HERE, folder=folder)
        if answer.exists():
            outcome.answer = json.loads(answer.read_text(encoding="utf-8"))
        if outcome.error is None:
            outcome.error = outcome.answer.pop("error", None)
        text = (outcome.error or "") + outcome.output[-2000:]
        if outcome.error and any(
            sign in text for sign in ("MemoryError", "bad_alloc", "Failed to allocate", "SIGKILL")
        ):
            outcome.error = f"more than {limits.gigabytes:g} GB ({outcome.error[:80]})"
    return outcome


def _last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1][:160] if lines else "no output"
