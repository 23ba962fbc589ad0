"""onnxq and onnxruntime's own quantizer side by side: time, memory, accuracy, size and latency of the result.

    python tools/benchmark.py --zoo ZOO                       # every model of the zoo
    python tools/benchmark.py --zoo ZOO effnet_lite0 --methods MinMax,Percentile,Entropy --samples 64
    python tools/benchmark.py --model net.onnx --data samples.npz
    python tools/benchmark.py --resnet50 --memory 10,100,1000

Every job runs in a process of its own under a limit of time and memory; what fails is reported in the table. Plain
float inference of the same samples is measured before each tool and after the last; its median is the unit of the
column "of float". Latency is the median ratio of CPU time of the result to the float model's, runs taken in turn.
Linux and macOS.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarking.limits import Limits, Outcome, run_job, run_limited
from benchmarking.report import describe_machine, markdown, memory_markdown, replace_section, write_json
from benchmarking.zoo import evaluate

METHODS = ("MinMax", "Percentile", "Entropy")
RECIPES: tuple[dict[str, Any], ...] = (
    {"shapes": "symbolic", "compute_only": False},
    {"shapes": "plain", "compute_only": False},
    {"shapes": None, "compute_only": False},
    {"shapes": "plain", "compute_only": True},
    {"shapes": None, "compute_only": True},
)
"""How onnxruntime is tried, the first that gives a file that loads counts: its pre-processing in full, without symbolic
shapes, or none; all operators, or Conv, MatMul and Gemm only."""
HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Subject:
    """A model to measure on.

    Attributes:
        name: in the table.
        model: its file.
        data: calibration data, anything that onnxq reads.
        metric: name of the zoo's metric, if it has one.
    """

    name: str
    model: Path
    data: Path | str
    metric: str | None = None


def main() -> int:
    """Run the benchmark; exit code 1 if onnxq failed anywhere."""
    args = _arguments()
    limits = Limits(args.time_limit, args.memory_limit, args.threads)
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        subjects = _subjects(args, Path(folder))
        text = ""
        document: dict[str, Any] = {"machine": describe_machine(args.threads), "models": [], "memory": []}
        for subject in subjects:
            if args.memory:
                document["memory"].append(_memory(subject, args.memory, limits, Path(folder)))
            else:
                document["models"].append(_compare(subject, args, limits, Path(folder) / subject.name))
            text = _write(document, args.output)
    print(text)
    if args.page:
        replace_section(args.page, args.section, text)
    rows = [row for model in document["models"] for row in model.get("tools", [model])]
    failed = any(r.get("tool", "onnxq") == "onnxq" and r.get("error") for r in rows)
    failed |= any(any(row["errors"]) for row in document["memory"])
    return int(failed)


def _write(document: dict[str, Any], output: Path) -> str:
    """Write both files, after every model, so that nothing is lost; the Markdown."""
    parts = [document["machine"]]
    if document["models"]:
        parts.append(markdown(document["models"]))
    if document["memory"]:
        parts.append(memory_markdown(document["memory"]))
    text = "\n".join(parts)
    output.with_suffix(".md").write_text(text, encoding="utf-8")
    write_json(output.with_suffix(".json"), document)
    return text


# -- a model


def _compare(subject: Subject, args: argparse.Namespace, limits: Limits, folder: Path) -> dict[str, Any]:
    """Everything about one model."""
    folder.mkdir()
    found: dict[str, Any] = {"model": subject.name, "metric": subject.metric}
    with _says(f"{subject.name}: data"):
        arguments = {"samples": args.samples, "held_out": args.held_out, "folder": str(folder)}
        outcome = run_job("prepare", {"model": str(subject.model), "data": str(subject.data), **arguments}, limits)
    if outcome.error:
        return {**found, "error": outcome.error}
    found |= outcome.answer
    floats, tools = [_float_seconds(subject, folder, limits)], []
    for tool in ("onnxq", *args.methods):
        with _says(f"{subject.name}: {tool}"):
            tools.append(_quantize(tool, subject, folder, limits))
        floats.append(_float_seconds(subject, folder, limits))
    known = [seconds for seconds in floats if seconds is not None]
    unit = statistics.median(known) if known else None
    found["float"] = {"cpu": unit, "all_cpu": known, "file_mb": subject.model.stat().st_size / 1e6}
    for tool in tools:
        if unit and "cpu" in tool:
            tool["times_float"] = tool["cpu"] / unit
    made = {tool["tool"]: str(_result(folder, tool["tool"])) for tool in tools if not tool.get("error")}
    with _says(f"{subject.name}: results"):
        for name, measured in _measure(subject, made, folder, args, limits).items():
            next(tool for tool in tools if tool["tool"] == name).update(measured)
    if subject.metric and args.metrics:
        with _says(f"{subject.name}: {subject.metric}"):
            found["float"] |= _metric(subject, subject.model, args.zoo, limits)
            for tool in tools:
                if not tool.get("error"):
                    tool |= _metric(subject, _result(folder, tool["tool"]), args.zoo, limits)
    return {**found, "tools": tools}


def _result(folder: Path, tool: str) -> Path:
    return folder / f"{tool}.onnx"


def _float_seconds(subject: Subject, folder: Path, limits: Limits) -> float | None:
    outcome = run_job("infer", {"model": str(subject.model), "folder": str(folder / "calib")}, limits)
    return outcome.answer.get("seconds") if outcome.error is None else None


def _quantize(tool: str, subject: Subject, folder: Path, limits: Limits) -> dict[str, Any]:
    """Run one tool; where onnxruntime fails it is tried in other ways, and the costs are those of the last."""
    output = _result(folder, tool)
    arguments = {"model": str(subject.model), "data": str(folder / "calib"), "output": str(output)}
    remarks: list[str] = []
    title = tool if tool == "onnxq" else f"onnxruntime {tool}"
    if tool == "onnxq":
        outcome = run_job("quantize_onnxq", arguments, limits)
    else:
        for recipe in RECIPES:
            outcome = run_job("quantize_onnxruntime", {**arguments, "method": tool, **recipe}, limits)
            if outcome.error is None or outcome.error.startswith("more than"):
                break
            remarks.append(f"at first: {outcome.error}")
        remarks = remarks[:1] if outcome.error is None else []
    row: dict[str, Any] = {"tool": tool, "title": title, "cpu": outcome.cpu, "wall": outcome.wall}
    row["peak_mb"] = outcome.peak_mb
    row["remark"] = "; ".join(text for text in (outcome.answer.get("remark"), *remarks) if text)
    if outcome.error:
        row["error"] = outcome.error + _tail(outcome, tool)
    else:
        row["file_mb"] = sum(p.stat().st_size for p in folder.glob(f"{output.name}*")) / 1e6
    return row


def _tail(outcome: Outcome, tool: str) -> str:
    lines = [line for line in outcome.output.splitlines() if line.strip()]
    return f" ({lines[-1].strip()[:160]})" if tool == "onnxq" and lines else ""


def _measure(
    subject: Subject, made: dict[str, str], folder: Path, args: argparse.Namespace, limits: Limits
) -> dict[str, dict[str, Any]]:
    """SQNR and latency of all results together; each alone where one of them takes the process down."""
    arguments = {"model": str(subject.model), "folder": str(folder / "eval"), "rounds": args.rounds}
    arguments["seconds"] = args.latency_seconds
    outcome = run_job("measure", {**arguments, "results": made}, limits)
    if outcome.error is None:
        answer: dict[str, dict[str, Any]] = outcome.answer["results"]
        return answer
    if len(made) == 1:
        return {name: {"error": f"result cannot be measured: {outcome.error}"} for name in made}
    return {
        name: measured
        for result in made.items()
        for name, measured in _measure(subject, dict([result]), folder, args, limits).items()
    }


def _metric(subject: Subject, model: Path, zoo: Path, limits: Limits) -> dict[str, Any]:
    """The zoo's own evaluation."""
    every, error = evaluate(zoo, subject.name, model, limits)
    if error:
        return {"metric_error": error}
    return {"metric": every.get(subject.metric or ""), "metrics": every}


# -- memory


def _memory(subject: Subject, counts: list[int], limits: Limits, folder: Path) -> dict[str, Any]:
    """Peak memory of ``onnxq quantize`` on random samples made one at a time, so that it is not the data's."""
    peaks: list[float | None] = []
    errors: list[str | None] = []
    os.environ["BENCHMARK_MODEL"] = str(subject.model)
    for count in counts:
        arguments = {"model": str(subject.model), "output": str(folder / "memory.onnx"), "samples": count}
        arguments["data"] = f"{HERE / 'benchmarking' / 'endless.py'}:feeds"
        with _says(f"{subject.name}: {count} samples"):
            outcome = run_job("quantize_onnxq", arguments, limits)
        peaks.append(None if outcome.error else outcome.peak_mb)
        errors.append(outcome.error and outcome.error + _tail(outcome, "onnxq"))
    return {"model": subject.name, "counts": counts, "peak_mb": peaks, "errors": errors}


# -- arguments


def _subjects(args: argparse.Namespace, folder: Path) -> list[Subject]:
    found = []
    args.zoo = args.zoo.resolve() if args.zoo else None
    if args.model:
        data = str(Path(args.data).resolve()) if Path(args.data).exists() else args.data
        found.append(Subject(args.model.stem, args.model.resolve(), data))
    if args.resnet50:
        model, data = folder / "resnet50.onnx", folder / "images.npz"
        command = [sys.executable, str(HERE / "resnet50.py"), str(model), str(data)]
        outcome = run_limited([*command, "--samples", str((args.samples or 64) + args.held_out)], Limits())
        if outcome.error:
            sys.exit(f"resnet50.py failed: {outcome.error}")
        found.append(Subject("resnet50 (random weights)", model, data))
    if args.names or not found:
        if args.zoo is None:
            sys.exit("give --model, --resnet50, or the folder of the zoo with --zoo or ONNXQ_ZOO")
        listed = run_limited([sys.executable, str(args.zoo / "zoo.py"), "list"], Limits()).output
        metrics = {line.split()[0]: line.split()[2] for line in listed.splitlines() if len(line.split()) > 3}
        names = args.names or sorted(p.parent.name for p in args.zoo.glob("models/*/model.onnx"))
        for name in names:
            home = args.zoo / "models" / name
            if not (home / "model.onnx").exists():
                sys.exit(f"the zoo has no model {name!r}")
            found.append(Subject(name, home / "model.onnx", home / "calib.npz", metrics.get(name)))
    return found


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    zoo = os.environ.get("ONNXQ_ZOO")
    parser.add_argument("names", nargs="*", metavar="NAME", help="models of the zoo (default: all)")
    parser.add_argument("--zoo", type=Path, default=Path(zoo) if zoo else None, help="its folder (default: $ONNXQ_ZOO)")
    parser.add_argument("--model", type=Path, help="a model of your own")
    parser.add_argument("--data", help="its calibration data, anything that onnxq reads")
    parser.add_argument("--resnet50", action="store_true", help="a network of ResNet-50's shape, random weights")
    parser.add_argument("--samples", type=int, help="calibrate with so many, repeated if need be (default: all)")
    parser.add_argument("--held-out", type=int, default=16, help="samples for SQNR (default 16)")
    parser.add_argument("--methods", type=_methods, default=["MinMax"], help=f"of onnxruntime: {','.join(METHODS)}")
    parser.add_argument("--no-metrics", dest="metrics", action="store_false", help="leave out the zoo's task metrics")
    parser.add_argument("--memory", type=_counts, metavar="10,100,1000", help="only peak memory with so many samples")
    parser.add_argument("--threads", type=int, default=1, help="of every session (default 1)")
    parser.add_argument("--rounds", type=int, default=60, help="most runs for a latency (default 60)")
    parser.add_argument("--latency-seconds", type=float, default=4.0, help="time for a latency (default 4)")
    parser.add_argument("--time-limit", type=float, default=300.0, help="seconds a job (default 300)")
    parser.add_argument("--memory-limit", type=float, default=8.0, help="GB a job, address space (default 8)")
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmark"), help="writes OUT.md and OUT.json")
    parser.add_argument("--page", type=Path, help="also put the tables into this Markdown file, into its section")
    parser.add_argument(
        "--section", default="models", help="the section, between <!-- section: NAME --> and <!-- end -->"
    )
    args = parser.parse_args()
    if args.model and not args.data:
        parser.error("--model needs --data")
    return args


def _methods(text: str) -> list[str]:
    chosen = [part for part in text.split(",") if part]
    if set(chosen) - set(METHODS):
        raise argparse.ArgumentTypeError(f"not all of {text} are among {', '.join(METHODS)}")
    return chosen


def _counts(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


@contextmanager
def _says(text: str) -> Iterator[None]:
    print(text, file=sys.stderr, flush=True)
    yield


if __name__ == "__main__":
    sys.exit(main())
