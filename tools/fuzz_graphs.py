"""Random graphs through onnxq until something breaks, which is then made small.

    python tools/fuzz_graphs.py 0 2000                               # these seeds, onnxruntime, both placements
    python tools/fuzz_graphs.py 0 300 --backend tensorrt --backend qnn:all --keep found/

Each graph is judged in one of a few worker processes, which are started again after a crash or a hang; what a graph
must satisfy is in ``tests/fuzzing/judge.py``. Where onnxruntime itself ends the process on the float model, while the
graph is made, there is no graph, and neither a run nor a breach: the seed is named at the end. A breach is printed with
the smallest graph that shows it still, and kept as a model with its data where ``--keep`` names a folder. The exit code
is 1 where there are breaches. ``--write`` puts the counts of the run into a page's table; a run of the same target and
first seed takes the place of an earlier one.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from pool import READY, Worker, answers, questions

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.fuzzing.graphs import Case, generate  # noqa: E402
from tests.fuzzing.judge import judge  # noqa: E402
from tests.fuzzing.shrink import kind, shrink  # noqa: E402
from tests.verdict import Verdict  # noqa: E402

_SECONDS = 120.0
_JOBS = 500
"""Graphs after which a worker is started again, so that what one leaves behind stays bounded."""
_BEGIN, _END = "<!-- runs -->", "<!-- end of runs -->"


def main() -> int:
    """Run and report."""
    parser = argparse.ArgumentParser(description="Run random graphs through onnxq.")
    parser.add_argument("first", type=int, help="the first seed")
    parser.add_argument("count", type=int, help="how many seeds")
    parser.add_argument("--backend", action="append", help="TARGET[:PLACEMENT]; default onnxruntime, both ways")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="folder for the graphs that break something")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="a page with a table between two marks")
    parser.add_argument("--whole", action="store_true", help="do not make them small")
    args = parser.parse_args()
    targets = []
    for text in args.backend or ("onnxruntime:all", "onnxruntime:auto"):
        name, _, placement = text.partition(":")
        targets.append((name, placement or "all"))
    jobs = [(seed, *target) for target in targets for seed in range(args.first, args.first + args.count)]
    start = time.perf_counter()
    judged = run(jobs, args.workers)
    found = [(job, verdict) for job, verdict in judged if isinstance(verdict, Verdict)]
    counted = Counter((job[1], job[2], str(verdict.outcome)) for job, verdict in found)
    for (backend, placement, outcome), count in sorted(counted.items()):
        print(f"{backend:12} {placement:8} {outcome:10} {count}")
    faults = [(job, verdict) for job, verdict in found if verdict.outcome == "FAULT"]
    print(f"{len(found)} runs of {args.count} graphs in {time.perf_counter() - start:.0f} s, {len(faults)} breaches")
    for (seed, backend, placement), lost in judged:
        if isinstance(lost, NoGraph):
            print(
                f"{backend}:{placement} seed {seed}: no graph: onnxruntime ends on the float model with {lost.signal}"
            )
    if args.write is not None:
        write(args.write, args.first, args.count, found)
    kinds: set[str] = set()
    for (seed, backend, placement), verdict in faults:
        if args.whole or kind(verdict) in kinds:
            continue
        kinds.add(kind(verdict))
        small = Fuzzer().ask("shrink", seed, backend, placement, seconds=10 * _SECONDS)
        if not isinstance(small, Case):
            print(f"\nseed {seed}, {backend}:{placement}: {verdict.text}\ncould not be made small")
            continue
        print(f"\nseed {seed}, {backend}:{placement}: {verdict.text}\n{onnx.printer.to_text(small.model)}")
        if args.keep is not None:
            args.keep.mkdir(parents=True, exist_ok=True)
            onnx.save(small.model, args.keep / f"{backend}_{placement}_{seed}.onnx")
            for k, feed in enumerate(small.feeds):
                np.savez(args.keep / f"{backend}_{placement}_{seed}_{k}.npz", **feed)  # type: ignore[arg-type]
    return 1 if faults else 0


def write(page: Path, first: int, count: int, found: list[tuple[tuple[int, str, str], Verdict]]) -> None:
    """Put the counts of a run into the table of a page."""
    text = page.read_text()
    before, rest = text.split(_BEGIN)
    table, after = rest.split(_END)
    lines = [line for line in table.splitlines() if line.startswith("| ") and not line.startswith("| target")]
    rows = {tuple(line.strip("| ").split(" | ")[:3]): line for line in lines}
    for target in dict.fromkeys(job[1:] for job, _ in found):
        counted = Counter(str(verdict.outcome) for job, verdict in found if job[1:] == target)
        cells = [*target, f"{first} to {first + count - 1}"]
        rows = {key: line for key, line in rows.items() if (*key[:2], key[2].split()[0]) != (*target, str(first))}
        numbers = [str(counted[outcome]) for outcome in ("quantized", "untouched", "refused", "FAULT")]
        rows[cells[0], cells[1], cells[2]] = f"| {' | '.join([*cells, *numbers])} |"
    head = "| target | placement | seeds | quantized | untouched | refused | breaches |\n|---|---|---|---|---|---|---|"
    made = "\n".join(rows[key] for key in sorted(rows))
    page.write_text(f"{before}{_BEGIN}\n{head}\n{made}\n{_END}{after}")


# -- the pool


@dataclass(frozen=True)
class NoGraph:
    """What a seed gives on whose float model onnxruntime ends the process: nothing that onnxq has a part in.

    Attributes:
        signal: that ended it, as ``SIGSEGV``.
    """

    signal: str


class Fuzzer(Worker):
    """A process that judges one graph after another: (what, seed, backend, placement) → verdict, or the smallest graph.

    A crash before the graph is made is no fault: a :class:`NoGraph`, where a new process ends there as well.

    Args:
        life: what runs there.
    """

    def __init__(self, life: Callable[[Connection], None] | None = None) -> None:
        super().__init__(life or serve, _JOBS)

    def died(self, code: int | None, question: tuple[Any, ...], seconds: float, *, ready: bool, first: bool) -> Any:
        """What a crash comes to."""
        if ready or code is None or code >= 0:
            return super().died(code, question, seconds, ready=ready, first=first)
        name = signal.Signals(-code).name
        if first:
            return NoGraph(name)
        again = self.ask(*question, seconds=seconds)
        if isinstance(again, NoGraph):
            return again
        return Verdict("FAULT", f"{name} while the graph was made, which a new process makes: one before it did harm")


def serve(connection: Connection) -> None:
    """The life of a worker."""
    for what, seed, backend, placement in questions(connection):
        case = generate(seed)
        connection.send(READY)
        connection.send((shrink if what == "shrink" else judge)(case, backend, placement))


def run(jobs: list[tuple[int, str, str]], workers: int) -> list[tuple[tuple[int, str, str], Verdict | NoGraph]]:
    """The verdicts, in the order of the jobs."""

    def tell(job: tuple[int, str, str], verdict: Verdict | NoGraph) -> None:
        if isinstance(verdict, Verdict) and verdict.outcome == "FAULT":
            seed, backend, placement = job
            print(f"{backend}:{placement} seed {seed}: {verdict.text}", flush=True)

    found = answers(jobs, workers, Fuzzer, lambda worker, job: worker.ask("judge", *job, seconds=_SECONDS), tell)
    return list(zip(jobs, found, strict=True))


if __name__ == "__main__":
    sys.exit(main())
