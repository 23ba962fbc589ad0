"""Random graphs through onnxq until something breaks, which is then made small.

    python tools/fuzz_graphs.py 0 2000                               # these seeds, onnxruntime, both placements
    python tools/fuzz_graphs.py 0 300 --backend tensorrt --backend qnn:all --keep found/

Each graph is judged in one of a few worker processes, which are started again after a crash or a hang; what a graph
must satisfy is in ``tests/fuzz_judge.py``. A breach is printed with the smallest graph that shows it still, and kept
as a model with its data where ``--keep`` names a folder. The exit code is 1 where there are breaches. ``--write`` puts
the counts of the run into a page's table; a run of the same target and first seed takes the place of an earlier one.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import queue
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import onnx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.fuzz import Case, generate  # noqa: E402
from tests.fuzz_judge import judge  # noqa: E402
from tests.verdict import Verdict  # noqa: E402

_SECONDS = 120.0
_JOBS = 500
"""Graphs after which a worker is started again, so that what one leaves behind stays bounded."""
_BEGIN, _END = "<!-- runs -->", "<!-- end of runs -->"
_STEPS = 150
"""Smaller graphs that are tried for a breach."""


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
    found = run(jobs, args.workers)
    counted = Counter((job[1], job[2], str(verdict.outcome)) for job, verdict in found)
    for (backend, placement, outcome), count in sorted(counted.items()):
        print(f"{backend:12} {placement:8} {outcome:10} {count}")
    faults = [(job, verdict) for job, verdict in found if verdict.outcome == "FAULT"]
    print(f"{len(found)} runs of {args.count} graphs in {time.perf_counter() - start:.0f} s, {len(faults)} breaches")
    if args.write is not None:
        write(args.write, args.first, args.count, found)
    kinds: set[str] = set()
    for (seed, backend, placement), verdict in faults:
        if args.whole or kind(verdict) in kinds:
            continue
        kinds.add(kind(verdict))
        small = Worker().ask("shrink", seed, backend, placement, seconds=10 * _SECONDS)
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


def kind(verdict: Verdict) -> str:
    """A verdict without what is particular to a graph."""
    return re.sub(r"'[^']*'|-?\d+(\.\d+)?|\binf\b", "…", verdict.text)[:80]


# -- the pool


class Worker:
    """A process that judges one graph after another."""

    def __init__(self) -> None:
        self.context = multiprocessing.get_context("spawn")
        self.process: Any = None
        self.connection: Any = None
        self.jobs = 0

    def ask(self, what: str, seed: int, backend: str, placement: str, seconds: float = _SECONDS) -> Any:
        """The answer; a crash and a hang are faults, after which a new process takes over."""
        if self.process is None or self.jobs >= _JOBS:
            self.stop()
            self.connection, other = self.context.Pipe()
            self.process, self.jobs = self.context.Process(target=serve, args=(other,), daemon=True), 0
            self.process.start()
            other.close()
        self.jobs += 1
        try:
            self.connection.send((what, seed, backend, placement))
            if self.connection.poll(seconds):
                return self.connection.recv()
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
            what, seed, backend, placement = connection.recv()
        except EOFError:
            return
        case = generate(seed)
        if what == "shrink":
            answer: Any = shrink(case, backend, placement)
        else:
            answer = judge(case, backend, placement)
        connection.send(answer)


def run(jobs: list[tuple[int, str, str]], workers: int) -> list[tuple[tuple[int, str, str], Verdict]]:
    """The verdicts, in the order of the jobs."""
    waiting: queue.Queue[int] = queue.Queue()
    for position in range(len(jobs)):
        waiting.put(position)
    verdicts: dict[int, Verdict] = {}

    def work() -> None:
        worker = Worker()
        while True:
            try:
                position = waiting.get_nowait()
            except queue.Empty:
                return worker.stop()
            verdict = worker.ask("judge", *jobs[position])
            verdicts[position] = verdict
            if verdict.outcome == "FAULT":
                seed, backend, placement = jobs[position]
                print(f"{backend}:{placement} seed {seed}: {verdict.text}", flush=True)

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [(jobs[position], verdicts[position]) for position in sorted(verdicts)]


# -- the smallest graph


def shrink(case: Case, backend: str, placement: Any) -> Case:
    """The smallest graph found by taking away outputs and nodes that shows the same kind of breach."""
    wanted, tried = kind(judge(case, backend, placement)), 0
    changed = True
    while changed and tried < _STEPS:
        changed = False
        for smaller in _smaller(case):
            tried += 1
            verdict = judge(smaller, backend, placement)
            if verdict.outcome == "FAULT" and kind(verdict) == wanted:
                case, changed = smaller, True
                break
            if tried >= _STEPS:
                break
    return case


def _smaller(case: Case) -> Iterator[Case]:
    """Graphs with one output, or with a tensor as an input in place of what makes it; valid ones only."""
    model, feeds = case.model, case.feeds
    if len(model.graph.output) > 1:
        for output in model.graph.output:
            yield from _valid(case.seed, _cut(model, [output.name], {}), feeds)
    made = [name for node in model.graph.node if node.op_type != "Constant" for name in node.output if name]
    for name in made:
        if [name] != [output.name for output in model.graph.output]:
            yield from _valid(case.seed, _cut(model, [name], {}), feeds)
    seen = _values(case, made)
    for name in reversed(made):
        if name in seen and name not in {output.name for output in model.graph.output}:
            more = [{**feed, name: array} for feed, array in zip(feeds, seen[name], strict=True)]
            yield from _valid(case.seed, _cut(model, [o.name for o in model.graph.output], {name: seen[name][0]}), more)


def _values(case: Case, names: list[str]) -> dict[str, list[Any]]:
    from tests.contract import infer

    bare = onnx.ModelProto.FromString(case.model.SerializeToString())
    del bare.graph.output[:]
    bare.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    try:
        return infer(bare, case.feeds, optimize=False)
    except Exception:  # onnxruntime's own
        return {}


def _cut(model: onnx.ModelProto, outputs: list[str], inputs: dict[str, Any]) -> onnx.ModelProto:
    """The part between some tensors and the outputs."""
    from tests.fuzz_scope import reads

    small = onnx.ModelProto()
    small.CopyFrom(model)
    graph, wanted, kept = small.graph, set(outputs), list[onnx.NodeProto]()
    for node in reversed(model.graph.node):
        if wanted & {*node.output} - {*inputs}:
            kept.append(node)
            wanted |= {*reads(node)}
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in reversed(kept)]
    initializers = [t for t in model.graph.initializer if t.name in wanted]
    given = [info for info in model.graph.input if info.name in wanted]
    for name, array in inputs.items():
        kind_ = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        given.append(onnx.helper.make_tensor_value_info(name, kind_, array.shape))
    known = {info.name: info for info in onnx.shape_inference.infer_shapes(model).graph.value_info}
    known |= {info.name: info for info in model.graph.output}
    made = [known.get(name, onnx.ValueInfoProto(name=name)) for name in outputs]
    for part in ("node", "initializer", "input", "output", "value_info"):
        del getattr(graph, part)[:]
    graph.node.extend(nodes)
    graph.initializer.extend(initializers)
    graph.input.extend(given)
    graph.output.extend(made)
    return small


def _valid(seed: int, model: onnx.ModelProto, feeds: list[dict[str, Any]]) -> Iterator[Case]:
    from tests.contract import infer

    names = {info.name for info in model.graph.input}
    fed = [{name: array for name, array in feed.items() if name in names} for feed in feeds]
    try:
        onnx.checker.check_model(model, full_check=True)
        infer(model, fed, optimize=False)
    except Exception:  # the checker's, shape inference's and onnxruntime's own
        return
    yield Case(seed, model, fed)


if __name__ == "__main__":
    sys.exit(main())
