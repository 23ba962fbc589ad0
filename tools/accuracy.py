"""What settings of onnxq make of the zoo's models: task metrics and SQNR on held-out data, CPU time, latency.

    python tools/accuracy.py --zoo ZOO                                   # fast, default and best, every model
    python tools/accuracy.py --zoo ZOO effnet_lite0 --variant "w4 gptq=--weight-bits 4 --algorithm gptq"

A variant is a name and the flags of ``onnxq quantize``. Every job runs in a process of its own. The metric is the
task's own, and SQNR is that of all runs of its evaluation, on data that calibration does not see.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarking.limits import Limits, run_job, run_limited
from benchmarking.report import describe_machine, number, replace_section, table, write_json
from benchmarking.zoo import evaluate

VARIANTS = ("fast=--effort fast", "default=", "best=--effort best")
_SHOWN = ("photo_sqnr_db", "photo_agree", "cifar_acc")
"""Further metrics of a task that are worth a place in the table."""


def main() -> int:
    """Run it; exit code 1 if a variant failed."""
    args = _arguments()
    limits = Limits(args.time_limit, args.memory_limit, args.threads)
    listed = run_limited([sys.executable, str(args.zoo / "zoo.py"), "list"], Limits()).output
    metrics = {line.split()[0]: line.split()[2] for line in listed.splitlines() if len(line.split()) > 3}
    names = args.names or sorted(path.parent.name for path in args.zoo.glob("models/*/model.onnx"))
    document: dict[str, Any] = {"machine": describe_machine(args.threads), "rows": []}
    text = ""
    for name in names:
        with tempfile.TemporaryDirectory(prefix="accuracy-") as folder:
            document["rows"] += _model(name, metrics.get(name, ""), args, limits, Path(folder))
        text = document["machine"] + "\n" + _markdown(document["rows"])
        args.output.with_suffix(".md").write_text(text, encoding="utf-8")
        write_json(args.output.with_suffix(".json"), document)
    if args.page:
        replace_section(args.page, args.section, text)
    return int(any(row.get("error") for row in document["rows"]))


def _model(name: str, metric: str, args: argparse.Namespace, limits: Limits, folder: Path) -> list[dict[str, Any]]:
    """A row for the float model, and one for each variant."""
    home = args.zoo / "models" / name
    model, data = home / "model.onnx", home / "calib.npz"
    prepared = {"samples": None, "held_out": 1, "folder": str(folder)}  # one is timed
    outcome = run_job("prepare", {"model": str(model), "data": str(data), **prepared}, limits)
    if outcome.error:
        return [{"model": name, "variant": "float", "error": outcome.error}]
    rows: list[dict[str, Any]] = [
        {"model": name, "variant": "float", **_metrics(name, metric, model, args.zoo, limits)}
    ]
    made: dict[str, str] = {}
    for variant in args.variant:
        title, _, flags = variant.partition("=")
        print(f"{name}: {title}", file=sys.stderr, flush=True)
        result = folder / f"{len(made)}.onnx"
        command = [sys.executable, "-m", "onnxq", "quantize", str(model), "--data", str(folder / "calib")]
        command += ["-o", str(result), "--json", "--min-sqnr", "-200"]  # what is poor belongs into the table as well
        outcome = run_limited([*command, *shlex.split(flags)], limits)
        row: dict[str, Any] = {"model": name, "variant": title, "flags": flags, "cpu": outcome.cpu}
        if outcome.error or not result.exists():
            row["error"] = outcome.error or "no result"
        else:
            answer = json.loads([line for line in outcome.output.splitlines() if line.startswith("{")][-1])
            row["recipe"] = answer.get("recipe")
            made[title] = str(result)
        rows.append(row)
    measured = run_job(
        "measure",
        {"model": str(model), "results": made, "folder": str(folder / "eval"), "rounds": 30, "seconds": args.seconds},
        limits,
    )
    for row in rows[1:]:
        if row["variant"] in made:
            row.update(measured.answer.get("results", {}).get(row["variant"], {}))
            row.update(_metrics(name, metric, Path(made[row["variant"]]), args.zoo, limits, model))
    return rows


def _metrics(
    name: str, metric: str, model: Path, zoo: Path, limits: Limits, reference: Path | None = None
) -> dict[str, Any]:
    """The zoo's own evaluation, and SQNR over its runs where there is a reference."""
    every, error = evaluate(zoo, name, model, limits, reference=reference)
    if error:
        return {"error": error}
    found = {"metric_name": metric, "metric": every.get(metric), "metrics": every}
    return {**found, "sqnr": every["sqnr_db"], "runs": every["runs"]} if reference is not None else found


def _markdown(rows: list[dict[str, Any]]) -> str:
    cells = []
    for row in rows:
        every = row.get("metrics", {})
        more = ", ".join(f"{key} {every[key]:.3g}" for key in _SHOWN if key in every and row["variant"] != "float")
        shown = f"{row['metric_name']} " if row["variant"] == "float" and "metric" in row else ""
        cells.append(
            [
                row["model"] if row["variant"] == "float" else "",
                row["variant"],
                shown + number(row.get("metric"), 3),
                more,
                number(row.get("sqnr"), 1),
                number(row.get("cpu"), 1),
                number(row.get("latency"), 2),
                ", ".join(row.get("recipe") or []) or row.get("error", ""),
            ]
        )
    head = ("model", "variant", "metric", "more", "SQNR dB", "CPU s", "latency", "made by")
    return table(head, cells, (2, 4, 5, 6))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    zoo = os.environ.get("ONNXQ_ZOO")
    parser.add_argument("names", nargs="*", metavar="NAME", help="models of the zoo (default: all)")
    parser.add_argument("--zoo", type=Path, default=Path(zoo) if zoo else None, help="its folder (default: $ONNXQ_ZOO)")
    parser.add_argument("--variant", action="append", metavar="NAME=FLAGS", help=f"default: {', '.join(VARIANTS)}")
    parser.add_argument("--threads", type=int, default=1, help="of every session of the jobs (default 1)")
    parser.add_argument("--seconds", type=float, default=2.0, help="time for a latency (default 2)")
    parser.add_argument("--time-limit", type=float, default=900.0, help="seconds a job (default 900)")
    parser.add_argument("--memory-limit", type=float, default=12.0, help="GB a job, address space (default 12)")
    parser.add_argument("-o", "--output", type=Path, default=Path("accuracy"), help="writes OUT.md and OUT.json")
    parser.add_argument("--page", type=Path, help="also put the table into this Markdown file, into its section")
    parser.add_argument("--section", default="efforts", help="the section, between its marks")
    args = parser.parse_args()
    if args.zoo is None:
        parser.error("give the folder of the zoo with --zoo or ONNXQ_ZOO")
    args.zoo = args.zoo.resolve()
    args.variant = args.variant or list(VARIANTS)
    return args


if __name__ == "__main__":
    sys.exit(main())
