"""Run every model that ships with the onnx package through onnxq, and write what became of them.

    python tools/onnx_models.py                                   # onnxruntime, everything placed and by cost
    python tools/onnx_models.py --backend tensorrt --backend snpe # these targets
    python tools/onnx_models.py --write                           # write docs/onnx_models.md as well
    python tools/onnx_models.py --group node --match 'test_lstm*' --show

Each model is run in one of a few worker processes, which are started again after a crash or a hang; what every model
must satisfy is in ``tests/verdict.py``. The exit code is 1 where there are faults.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import multiprocessing
import os
import queue
import re
import sys
import threading
import time
from collections import Counter
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.foreign import GROUPS, Case, cases  # noqa: E402
from tests.verdict import Verdict, judge  # noqa: E402

DOC = ROOT / "docs" / "onnx_models.md"
HEAD = """<!-- written by tools/onnx_models.py --write -->

# The models that ship with the onnx package

Every model of `onnx.backend.test` (onnx {onnx}) through `check`, `plan` and `quantize`, judged from outside with
onnxruntime {onnxruntime}:

- quantized: valid, runs, same interface, finite where the float model is;
- untouched: nothing is quantized, each node with a reason, equal numbers;
- refused: onnxruntime does not run the float model either, or what goes in is no tensor; a clear error, foretold by
  `check`;
- anything else is a fault: a traceback, a hang, a crash, an invalid file, a changed interface, a changed input model.

`node, lowered` are the node tests whose opset is too new for this onnxruntime, stamped with an older one; `node,
constants` are the node tests again, every input but one made a constant.
"""
OUTCOMES = ("quantized", "untouched", "refused", "FAULT")
_JOBS = 400
"""Models after which a worker is started again, so that what one leaves behind stays bounded."""
_SECONDS = {"light": 900.0}
"""Time a model may take; a minute else."""
Row = tuple[Case, str, str, Verdict, float]


def main() -> int:
    """Run and report."""
    parser = argparse.ArgumentParser(description="Run the models of the onnx package through onnxq.")
    parser.add_argument("--backend", action="append", help="TARGET[:PLACEMENT]; default onnxruntime, both ways")
    parser.add_argument("--group", action="append", choices=GROUPS, help="default all")
    parser.add_argument("--match", default="*", help="pattern of test names")
    parser.add_argument("--every", type=int, default=1, help="only each Nth model")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--show", action="store_true", help="print every verdict, not only the faults")
    parser.add_argument("--json", type=Path, help="all verdicts, one a line")
    parser.add_argument("--write", action="store_true", help=f"write {DOC.relative_to(ROOT)}")
    args = parser.parse_args()
    start = time.perf_counter()
    targets = [parse(text) for text in args.backend or ("onnxruntime:all", "onnxruntime:auto")]
    found = [case for case in cases(args.group or GROUPS) if fnmatch.fnmatch(case.name, args.match)][:: args.every]
    rows = run([(case, *target) for target in targets for case in found], args.workers, show=args.show)
    if args.json:
        lines = [json.dumps({"group": c.group, "name": c.name, "backend": b, "placement": p, "seconds": round(s, 2),
                             **asdict(v)}) for c, b, p, v, s in rows]  # fmt: skip
        args.json.write_text("\n".join(lines) + "\n")
    text = table(rows, time.perf_counter() - start)
    print(text)
    if args.write:
        DOC.write_text(text)
    return 1 if any(row[3].outcome == "FAULT" for row in rows) else 0


def parse(text: str) -> tuple[str, str]:
    """``"tensorrt"`` or ``"onnxruntime:auto"`` → target and placement (``"all"`` unless it is named)."""
    name, _, placement = text.partition(":")
    return name, placement or "all"


# -- the pool


class Worker:
    """A process that judges one model after another."""

    def __init__(self) -> None:
        self.context = multiprocessing.get_context("spawn")
        self.process: Any = None
        self.connection: Any = None
        self.jobs = 0

    def judge(self, case: Case, backend: str, placement: str, seconds: float) -> Verdict:
        """The verdict; a crash and a hang are faults, after which a new process takes over."""
        if self.process is None or self.jobs >= _JOBS:
            self.stop()
            self.connection, other = self.context.Pipe()
            self.process, self.jobs = self.context.Process(target=serve, args=(other,), daemon=True), 0
            self.process.start()
            other.close()
        self.jobs += 1
        try:
            self.connection.send((case, backend, placement))
            if self.connection.poll(seconds):
                verdict: Verdict = self.connection.recv()
                return verdict
            self.stop()
            return Verdict("FAULT", f"no end after {seconds:g} s")
        except (EOFError, OSError):
            self.process.join(10)
            code = self.process.exitcode
            self.stop()
            return Verdict("FAULT", f"the process died with exit code {code}")

    def stop(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.connection.close()
        self.process = None


def serve(connection: Connection) -> None:
    """The life of a worker."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what native libraries print
    while True:
        try:
            case, backend, placement = connection.recv()
        except EOFError:
            return
        connection.send(judge(case, backend, placement))


def run(jobs: list[tuple[Case, str, str]], workers: int, *, show: bool = False) -> list[Row]:
    """The verdicts, in the order of the jobs."""
    waiting: queue.Queue[int] = queue.Queue()
    for position in range(len(jobs)):
        waiting.put(position)
    rows: list[Row | None] = [None] * len(jobs)

    def work() -> None:
        worker = Worker()
        while True:
            try:
                position = waiting.get_nowait()
            except queue.Empty:
                return worker.stop()
            case, backend, placement = jobs[position]
            start = time.perf_counter()
            verdict = worker.judge(case, backend, placement, _SECONDS.get(case.group, 60.0))
            rows[position] = (case, backend, placement, verdict, time.perf_counter() - start)
            if show or verdict.outcome == "FAULT":
                print(f"{verdict.outcome} {backend}:{placement} {case.group}/{case.name}: {verdict.text}", flush=True)

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [row for row in rows if row is not None]


# -- the table


def table(rows: list[Row], seconds: float) -> str:
    """The page of the summary."""
    import onnx
    import onnxruntime

    counted = Counter((b, p, c.group, str(v.outcome)) for c, b, p, v, _ in rows)
    lines = [
        HEAD.format(onnx=onnx.__version__, onnxruntime=onnxruntime.__version__),
        "| target | placement | group | models | quantized | untouched | refused | faults |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for backend, placement in dict.fromkeys((b, p) for _, b, p, _, _ in rows):
        for group in GROUPS:
            cells = [counted[backend, placement, group, outcome] for outcome in OUTCOMES]
            if sum(cells):
                lines.append(f"| {' | '.join(map(str, (backend, placement, group, sum(cells), *cells)))} |")
    faults = [f"- {b} ({p}), {c.group}/{c.name}: {v.text}" for c, b, p, v, _ in rows if v.outcome == "FAULT"]
    if faults:
        lines += ["", "## Faults", "", *faults]
    refused = Counter(_kind(c.name, v.text) for c, _, _, v, _ in rows if v.outcome == "refused")
    lines += ["", "## Why models are refused", "", "| models | error |", "|---|---|"]
    lines += [f"| {count} | {text} |" for text, count in refused.most_common()]
    return "\n".join(lines) + f"\n\n{len(rows)} runs in {seconds / 60:.0f} minutes.\n"


def _kind(name: str, text: str) -> str:
    """An error without what is particular to a model."""
    text = text.replace(f"{name}: ", "").replace(f", {name}", "")
    text = re.sub(r"'[^']*'|\"[^\"]*\"", "'…'", text.split(". ")[0])
    text = re.sub(r"(In Node, |node:|Name:|Op with name|\(op_type:).*", r"\1 …", text)
    text = re.sub(r"(implementation for|kernel for|while running|know operator) \S+", r"\1 …", text)
    return re.sub(r"\d+", "N", text).replace("|", "\\|")[:160]


if __name__ == "__main__":
    sys.exit(main())
