"""onnxq and NNCF side by side for OpenVINO, whose own quantizer NNCF is: accuracy and speed in OpenVINO, and the cost.

    pip install -e . openvino nncf                                  # in an environment of its own
    python tools/beside_nncf.py --zoo ZOO                           # every model of the zoo
    python tools/beside_nncf.py --zoo ZOO fashion_vit --transformers fashion_vit

Both have their defaults, but that NNCF is told which models are transformers (``--transformers``), and quantize with
the first two thirds of a model's calibration samples; the others are measured on. Every job is a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarking.beside import Run, part, samples_of, sqnr_of, times_of
from benchmarking.limits import Limits, Outcome, run_limited
from benchmarking.report import describe_machine, replace_section

HEAD = "| model | tool | CPU s | SQNR dB | latency, f32 | latency, OpenVINO's choice |\n|---|---|--:|--:|--:|--:|"
ITSELF = [sys.executable, str(Path(__file__).resolve())]


def main() -> int:
    """Run the jobs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="models of the zoo; default all")
    parser.add_argument("--zoo", type=Path, default=os.environ.get("ONNXQ_ZOO"), help="default ONNXQ_ZOO")
    parser.add_argument("--transformers", default="", help="names, with commas between")
    parser.add_argument("--time-limit", type=float, default=600.0, help="seconds for a job")
    parser.add_argument("--page", type=Path, help="write the table into this page's section nncf")
    args = parser.parse_args()
    if args.zoo is None:
        parser.error("--zoo or ONNXQ_ZOO must name a folder of models")
    models = args.zoo / "models" if (args.zoo / "models").is_dir() else args.zoo
    names = args.names or sorted(path.parent.name for path in models.glob("*/model.onnx"))
    limits = Limits(args.time_limit, gigabytes=20.0)
    lines = [describe_machine(1), "", HEAD]
    for name in names:
        kind = "transformer" if name in args.transformers.split(",") else "model"
        with tempfile.TemporaryDirectory(prefix="beside-") as folder:
            for row in _rows(name, models / name, kind, Path(folder), limits):
                lines.append(f"| {' | '.join(row)} |")
                print(lines[-1], flush=True)
    if args.page:
        replace_section(args.page, "nncf", "\n".join(lines))
    return 0


def _rows(name: str, source: Path, kind: str, folder: Path, limits: Limits) -> Sequence[list[str]]:
    """The rows of a model."""
    model, data, made = str(source / "model.onnx"), folder / "calib.npz", folder / "onnxq.onnx"
    parted = run_limited([*ITSELF, "part", str(source / "calib.npz"), str(data), str(folder / "eval.npz")], limits)
    if parted.error:
        return [[name, "", "", "", "", f"data: {parted.error}"]]
    command = ["quantize", model, "--data", str(data), "--backend", "openvino", "-o", str(made), "--quiet"]
    jobs: dict[str, Outcome] = {
        "onnxq": run_limited([sys.executable, "-m", "onnxq", *command], limits),
        "NNCF": run_limited([*ITSELF, "nncf", model, str(data), str(folder / "nncf.xml"), kind], limits),
    }
    files = [str(path) for path in (made, folder / "nncf.xml") if path.is_file()]
    measured = run_limited([*ITSELF, "measure", str(folder / "eval.npz"), model, *files], limits)
    found: dict[str, Any] = json.loads(measured.output.strip().splitlines()[-1]) if not measured.error else {}
    rows: list[list[str]] = []
    for tool, job in jobs.items():
        of = found.get("onnxq.onnx" if tool == "onnxq" else "nncf.xml")
        title = name if not rows else ""
        if of is None:
            rows.append([title, tool, f"{job.cpu:.1f}", "", "", job.error or measured.error or "does not load"])
            continue
        rows.append([title, tool, f"{job.cpu:.1f}", f"{of['sqnr']:.1f}", f"{of['f32']:.2f}", f"{of['choice']:.2f}"])
    return rows


# -- jobs


def nncf(model: str, data: str, output: str, kind: str) -> None:
    """Quantize with NNCF."""
    import openvino
    from nncf import Dataset, ModelType, quantize

    samples = samples_of(data)
    read = openvino.Core().read_model(model)
    options = {"model_type": ModelType.TRANSFORMER} if kind == "transformer" else {}
    made = quantize(read, Dataset(samples, lambda sample: sample), subset_size=len(samples), **options)
    openvino.save_model(made, output, compress_to_fp16=False)


def _outputs(request: Any) -> Run:
    return lambda sample: list(request.infer(sample).values())


def measure(data: str, reference: str, *results: str) -> None:
    """Print how far results are from the float model, and how long they take: JSON, result's file name → figures."""
    import openvino

    core, samples = openvino.Core(), samples_of(data)
    one = {"INFERENCE_NUM_THREADS": 1, "PERFORMANCE_HINT": "LATENCY"}
    exact = {**one, "INFERENCE_PRECISION_HINT": "f32"}
    paths = (reference, *results)
    figures: dict[str, dict[str, float]] = {Path(path).name: {} for path in results}
    for key, config in (("f32", exact), ("choice", one)):
        requests = [core.compile_model(path, "CPU", config).create_infer_request() for path in paths]
        times = times_of([request.infer for request in requests], samples[0])
        for path, took in zip(results, times[1:], strict=True):
            figures[Path(path).name][key] = took / times[0]
        if key == "f32":
            for path, request in zip(results, requests[1:], strict=True):
                figures[Path(path).name]["sqnr"] = sqnr_of(_outputs(requests[0]), _outputs(request), samples)
    print(json.dumps(figures))


if __name__ == "__main__":
    jobs = {job.__name__: job for job in (part, nncf, measure)}
    if len(sys.argv) > 1 and sys.argv[1] in jobs:
        jobs[sys.argv[1]](*sys.argv[2:])
        sys.exit(0)
    sys.exit(main())
