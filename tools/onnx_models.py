"""Run every model that ships with the onnx package through onnxq, and write what became of them.

    python tools/onnx_models.py                                   # onnxruntime, everything placed and by cost
    python tools/onnx_models.py --backend tensorrt --backend snpe # these targets
    python tools/onnx_models.py --write                           # write docs/onnx_models.md as well
    python tools/onnx_models.py --group node --match 'test_lstm*' --show
    python tools/onnx_models.py --read first.jsonl --read second.jsonl --write   # of runs with --json

Each model is run in one of a few worker processes, which are started again after a crash or a hang; what every model
must satisfy is in ``tests/verdict.py`` and ``tests/verdict_verbs.py``. The exit code is 1 where there are faults.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import re
import sys
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path

from pool import Worker, answers, questions

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.foreign import GROUPS, Case, cases  # noqa: E402
from tests.verdict import judge  # noqa: E402
from tests.verdict_verbs import VERBS  # noqa: E402

DOC = ROOT / "docs" / "onnx_models.md"
HEAD = """<!-- written by tools/onnx_models.py --write -->

# The models that ship with the onnx package

Every model of `onnx.backend.test` (onnx {onnx}) through {verbs}, judged from outside with
onnxruntime {onnxruntime}:

- quantized: valid, runs, same interface, finite where the float model is;
  `show`, `verify` (simulated) and `compare` read the result,
  `deploy` takes it to onnxruntime and TensorRT with what it computes kept, or says which quantizers cannot be held;
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
_TOLD = 500
"""Models between two lines of progress."""


@dataclass(frozen=True)
class Row:
    """What became of a model on a target; seconds are of wall time."""

    backend: str
    placement: str
    group: str
    name: str
    outcome: str
    text: str
    seconds: float

    @staticmethod
    def parsed(line: str) -> Row:
        """A row from a line of JSON."""
        return Row(**json.loads(line))


def main() -> int:
    """Run and report."""
    parser = argparse.ArgumentParser(description="Run the models of the onnx package through onnxq.")
    parser.add_argument("--backend", action="append", help="TARGET[:PLACEMENT]; default onnxruntime, both ways")
    parser.add_argument("--group", action="append", choices=GROUPS, help="default all")
    parser.add_argument("--match", default="*", help="pattern of test names")
    parser.add_argument("--every", type=int, default=1, help="only each Nth model")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--show", action="store_true", help="print every verdict, not only the faults")
    parser.add_argument("--json", type=Path, help="write the verdicts here, one a line, as they come")
    parser.add_argument("--resume", action="store_true", help="go on after the verdicts that the file of --json has")
    parser.add_argument("--read", type=Path, action="append", help="run nothing: the verdicts of such files")
    parser.add_argument("--write", action="store_true", help=f"write {DOC.relative_to(ROOT)}")
    args = parser.parse_args()
    if args.read:
        rows = [Row.parsed(line) for path in args.read for line in path.read_text().splitlines()]
    else:
        targets = [parse(text) for text in args.backend or ("onnxruntime:all", "onnxruntime:auto")]
        found = [case for case in cases(args.group or GROUPS) if fnmatch.fnmatch(case.name, args.match)][:: args.every]
        before = args.json.read_text() if args.resume and args.json and args.json.is_file() else ""
        rows = [Row.parsed(line) for line in before.splitlines()]
        done = {(row.group, row.name, row.backend, row.placement) for row in rows}
        jobs = [(case, *target) for target in targets for case in found]
        jobs = [job for job in jobs if (job[0].group, job[0].name, *job[1:]) not in done]
        rows += run(jobs, args.workers, show=args.show, path=args.json, more=bool(rows))
    text = table(rows)
    print(text)
    if args.write:
        DOC.write_text(text)
    return 1 if any(row.outcome == "FAULT" for row in rows) else 0


def parse(text: str) -> tuple[str, str]:
    """``"tensorrt"`` or ``"onnxruntime:auto"`` → target and placement (``"all"`` unless it is named)."""
    name, _, placement = text.partition(":")
    return name, placement or "all"


# -- the pool


def serve(connection: Connection) -> None:
    """The life of a worker."""
    for case, backend, placement in questions(connection):
        connection.send(judge(case, backend, placement))


def run(
    jobs: list[tuple[Case, str, str]],
    workers: int,
    *,
    show: bool = False,
    path: Path | None = None,
    more: bool = False,
) -> list[Row]:
    """The verdicts, in the order of the jobs; in a file as they come, ``more`` of them at its end."""
    told = count(1)

    def ask(worker: Worker, job: tuple[Case, str, str]) -> Row:
        case, backend, placement = job
        start = time.perf_counter()
        verdict = worker.ask(*job, seconds=_SECONDS.get(case.group, 60.0))
        seconds = round(time.perf_counter() - start, 2)
        return Row(backend, placement, case.group, case.name, verdict.outcome, verdict.text, seconds)

    def tell(_: tuple[Case, str, str], row: Row) -> None:
        if file is not None:
            print(json.dumps(asdict(row)), file=file, flush=True)
        if show or row.outcome == "FAULT":
            print(f"{row.outcome} {row.backend}:{row.placement} {row.group}/{row.name}: {row.text}", flush=True)
        if (done := next(told)) % _TOLD == 0:
            print(f"{done} of {len(jobs)}", file=sys.stderr, flush=True)

    with ExitStack() as stack:
        file = stack.enter_context(path.open("a" if more else "w")) if path is not None else None
        return answers(jobs, workers, lambda: Worker(serve, _JOBS), ask, tell)


# -- the table


def table(rows: list[Row]) -> str:
    """The page of the summary."""
    import onnx
    import onnxruntime

    counted = Counter((row.backend, row.placement, row.group, row.outcome) for row in rows)
    verbs = ", ".join(f"`{verb}`" for verb in VERBS)
    lines = [
        HEAD.format(onnx=onnx.__version__, onnxruntime=onnxruntime.__version__, verbs=verbs),
        "| target | placement | group | models | quantized | untouched | refused | faults |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for backend, placement in dict.fromkeys((row.backend, row.placement) for row in rows):
        for group in GROUPS:
            cells = [counted[backend, placement, group, outcome] for outcome in OUTCOMES]
            if sum(cells):
                lines.append(f"| {' | '.join(map(str, (backend, placement, group, sum(cells), *cells)))} |")
    faults = [f"- {r.backend} ({r.placement}), {r.group}/{r.name}: {r.text}" for r in rows if r.outcome == "FAULT"]
    if faults:
        lines += ["", "## Faults", "", *faults]
    refused = Counter(_kind(row.name, row.text) for row in rows if row.outcome == "refused")
    lines += ["", "## Why models are refused", "", "| models | error |", "|---|---|"]
    lines += [f"| {count} | {text} |" for text, count in refused.most_common()]
    return "\n".join(lines) + f"\n\n{len(rows)} runs.\n"


def _kind(name: str, text: str) -> str:
    """An error without what is particular to a model."""
    text = text.replace(f"{name}: ", "").replace(f", {name}", "")
    text = re.sub(r"'[^']*'|\"[^\"]*\"", "'…'", text.split(". ")[0])
    text = re.sub(r"(In Node, |node:|Name:|Op with name|\(op_type:).*", r"\1 …", text)
    text = re.sub(r"(implementation for|kernel for|while running|know operator) \S+", r"\1 …", text)
    return re.sub(r"\d+", "N", text).replace("|", "\\|")[:160]


if __name__ == "__main__":
    sys.exit(main())
