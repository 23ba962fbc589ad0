"""What the scripts share: read the request, give samples, time models, write outputs and the report. Needs numpy."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["RefusedError", "Request", "SamplesError", "TooSlowError", "best_times", "first_line", "serve"]

MISSING, REFUSED, UNFIT = 3, 4, 5
BUDGET, ROW = 0.4, 0.01
"""Seconds of all runs of a model that is timed, and of runs in a row."""
LEAST = 3
"""Rows of each, if they take longer than that."""
_OUTLIERS = 20
LONGEST = 10.0
"""Seconds that a run may take on one thread: of slower models some would take the minutes that there are."""


class RefusedError(Exception):
    """The runtime does not take the model, for the reason that the message gives."""


class SamplesError(Exception):
    """The runtime takes the model, and not the samples."""


class TooSlowError(Exception):
    """A model is too slow to be timed."""


class Request:
    """What is asked: see ``onnxq.runtimes.child``.

    Attributes:
        model: path of the model.
        beside: path of a model to time beside it, if that is asked for.
        results: folder for outputs, the report, and files that the runtime writes.
        options: options of the runtime.
        inputs: names of the arrays of a sample.
        samples: number of samples.
    """

    def __init__(self, path: str) -> None:
        document = json.loads(Path(path).read_text())
        self.model = Path(document["model"])
        self.beside = Path(document["beside"]) if document.get("beside") else None
        self.results = Path(document["results"])
        self.options: dict[str, Any] = document["options"]
        self.inputs: list[str] = document["inputs"]
        self._samples: list[str] = document["samples"]
        self.samples = len(self._samples)

    def feeds(self) -> Iterator[dict[str, Any]]:
        """The samples, input name → array."""
        for path in self._samples:
            with np.load(path, allow_pickle=False) as arrays:
                yield {name: arrays[str(k)] for k, name in enumerate(self.inputs)}

    def write(self, index: int, outputs: Sequence[Any]) -> None:
        """The outputs of a sample, in the order of the report's names; sequences and maps are left out."""
        tensors = {k: np.asarray(array) for k, array in enumerate(outputs) if not isinstance(array, (list, dict))}
        arrays: dict[str, Any] = {str(k): a.astype(str) if a.dtype == object else a for k, a in tensors.items()}
        np.savez(self.results / f"{index}.npz", **arrays)


def best_times(*models: Callable[[], object]) -> list[float]:
    """The least CPU seconds that a run of each takes, on one thread.

    They run in turn, so that all see the same machine, some runs in a row, as a model in use does; the first are not
    counted. Of many runs a twentieth are left out below: now and then a clock of CPU time loses some microseconds.

    Args:
        models: each runs a model on the same sample.

    Raises:
        TooSlowError: a run takes so long that it is not worth the wait.
    """
    for run in models:
        if (first := _seconds(run)) > LONGEST:
            raise TooSlowError(f"a run takes {first:.0f} s on one thread")
    rows = [max(1, int(ROW / max(_seconds(run), 1e-6))) for run in models]
    times, spent, turns = [list[float]() for _ in models], 0.0, 0
    while turns < LEAST or spent < BUDGET * len(models):
        for k, run in enumerate(models):
            took = [_seconds(run) for _ in range(rows[k])]
            times[k] += took
            spent += sum(took)
        turns += 1
    return [sorted(each)[len(each) // _OUTLIERS] for each in times]


def first_line(error: Exception) -> str:
    """What an error says first; its type where it says nothing."""
    return next((line for line in map(str.strip, str(error).splitlines()) if line), type(error).__name__)


def _seconds(run: Callable[[], object]) -> float:
    start, wall = time.process_time(), time.perf_counter()
    run()
    took = time.process_time() - start
    return took if took > 0 else time.perf_counter() - wall  # the clock stood still, as some do now and then


def serve(version: Callable[[], str], run: Callable[[Request], dict[str, Any]]) -> int:
    """Answer the command line.

    Args:
        version: of the runtime; raises ImportError or OSError where it is not installed.
        run: loads and runs the model; gives the report without its version: ``outputs`` (names), ``integer``,
            ``floating``, ``remarks``, ``files``, ``times`` (best seconds of the model beside and of the model).

    Returns:
        The exit code.
    """
    try:
        found = version()
    except (ImportError, OSError) as error:
        print(error, file=sys.stderr)
        return MISSING
    if sys.argv[1] == "--version":
        print(found)
        return 0
    request = Request(sys.argv[1])
    try:
        report = {"version": found, **run(request)}
    except (RefusedError, SamplesError) as error:
        print(" ".join(str(error).split()), file=sys.stderr, flush=True)
        # libraries that have failed may crash as the process ends
        os._exit(REFUSED if isinstance(error, RefusedError) else UNFIT)
    (request.results / "report.json").write_text(json.dumps(report))
    return 0
