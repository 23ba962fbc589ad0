"""onnxq and Google's ai-edge-quantizer side by side for LiteRT: accuracy and speed in LiteRT, and the cost.

    pip install -e . ai-edge-litert ai-edge-quantizer               # in an environment of its own
    python tools/beside_ai_edge.py --zoo ZOO effnet_lite0 mnist_cnn # models whose sizes are fixed but for the batch

Google's takes the float TensorFlow Lite file that onnxq writes of a model, with its recipes for 8-bit weights and
activations, and for 8-bit weights and ranges of activations taken at each run. Both quantize with the first two thirds
of a model's calibration samples; the others are measured on, on one thread. Every job is a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarking.beside import Run, Sample, part, samples_of, sqnr_of, times_of
from benchmarking.limits import Limits, Outcome, run_limited
from benchmarking.report import describe_machine, replace_section

HEAD = "| model | tool | CPU s | SQNR dB | latency | MB |\n|---|---|--:|--:|--:|--:|"
ITSELF = [sys.executable, str(Path(__file__).resolve())]


def main() -> int:
    """Run the jobs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", metavar="NAME", help="models of the zoo")
    parser.add_argument("--zoo", type=Path, default=os.environ.get("ONNXQ_ZOO"), help="default ONNXQ_ZOO")
    parser.add_argument("--time-limit", type=float, default=600.0, help="seconds for a job")
    parser.add_argument("--page", type=Path, help="write the table into this page's section ai-edge")
    args = parser.parse_args()
    if args.zoo is None:
        parser.error("--zoo or ONNXQ_ZOO must name a folder of models")
    limits = Limits(args.time_limit, gigabytes=20.0)
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("ai-edge-litert", "ai-edge-quantizer"))
    lines = [describe_machine(1), f"With {versions}:", "", HEAD]
    for name in args.names:
        with tempfile.TemporaryDirectory(prefix="beside-") as folder:
            for row in _rows(name, args.zoo / "models" / name, Path(folder), limits):
                lines.append(f"| {' | '.join(row)} |")
                print(lines[-1], flush=True)
    if args.page:
        replace_section(args.page, "ai-edge", "\n".join(lines))
    return 0


def _rows(name: str, source: Path, folder: Path, limits: Limits) -> Sequence[list[str]]:
    """The rows of a model."""
    model, data, floats = str(source / "model.onnx"), folder / "calib.npz", folder / "float.tflite"
    parts = ["part", str(source / "calib.npz"), str(data), str(folder / "eval.npz")]
    for words in (parts, ["plain", model, str(data), str(floats)]):
        done = run_limited([*ITSELF, *words], limits)
        if done.error:
            return [[name, "", "", "", "", f"{words[0]}: {done.error}"]]
    onnxq = [sys.executable, "-m", "onnxq", "quantize", model, "--data", str(data), "--quiet"]
    commands = {
        "onnxq": [*onnxq, "--backend", "litert"],
        "onnxq --placement all": [*onnxq, "--backend", "litert", "--placement", "all"],
        "ai-edge-quantizer": [*ITSELF, "google", str(floats), str(data), "static_wi8_ai8"],
        "onnxq, ranges at each run": [*onnxq, "--backend", "litert_dynamic"],
        "ai-edge-quantizer, ranges at each run": [*ITSELF, "google", str(floats), str(data), "dynamic_wi8_afp32"],
    }
    files = {tool: folder / f"result{k}.tflite" for k, tool in enumerate(commands)}
    jobs: dict[str, Outcome] = {
        tool: run_limited([*command, "-o", str(files[tool])], limits) for tool, command in commands.items()
    }
    there = [str(path) for path in files.values() if path.is_file()]
    measured = run_limited([*ITSELF, "measure", str(folder / "eval.npz"), str(floats), *there], limits)
    found: dict[str, Any] = json.loads(measured.output.strip().splitlines()[-1]) if not measured.error else {}
    rows: list[list[str]] = []
    for tool, job in jobs.items():
        of, title = found.get(files[tool].name), name if not rows else ""
        if of is None:
            rows.append([title, tool, f"{job.cpu:.1f}", "", "", job.error or measured.error or "does not load"])
            continue
        size = files[tool].stat().st_size / 1e6
        rows.append([title, tool, f"{job.cpu:.1f}", f"{of['sqnr']:.1f}", f"{of['latency']:.2f}", f"{size:.2f}"])
    return rows


# -- jobs


def plain(model: str, data: str, output: str) -> None:
    """Write the float model as a TensorFlow Lite file, in the form in which onnxq would quantize it."""
    import onnxq
    from onnxq.catalog import backends

    target = next(each for each in backends() if each.name == "litert")
    made = onnxq.quantize(model, data, backend="litert", options=onnxq.Options(samples=2, effort="fast"))
    assert target.runtime_file is not None
    target.runtime_file(made.model, Path(output))


def google(model: str, data: str, name: str, _: str, output: str) -> None:
    """Quantize with Google's quantizer, by one of its recipes."""
    from ai_edge_quantizer import quantizer, recipe

    made = quantizer.Quantizer(model, getattr(recipe, name)())
    samples = [_as_wanted(sample, _details(model)) for sample in samples_of(data)]
    found = made.calibrate({"serving_default": samples}) if made.need_calibration else None
    made.quantize(found).export_model(output)


def measure(data: str, reference: str, *results: str) -> None:
    """Print how far results are from the float model, and how long they take: JSON, result's file name → figures."""
    samples = samples_of(data)
    runs = [_run(path) for path in (reference, *results)]
    times = times_of(runs, samples[0])
    figures = {
        Path(path).name: {"latency": took / times[0], "sqnr": sqnr_of(runs[0], run, samples)}
        for path, run, took in zip(results, runs[1:], times[1:], strict=True)
    }
    print(json.dumps(figures))


def _details(path: str) -> dict[str, Any]:
    from ai_edge_litert.interpreter import Interpreter

    return dict(Interpreter(path).get_signature_runner().get_input_details())


def _as_wanted(sample: Sample, details: dict[str, Any]) -> Sample:
    """The inputs of a file among a sample's arrays, of its sizes and types."""
    import numpy as np

    made = {}
    for name, detail in details.items():
        array = np.asarray(sample[name]).reshape(detail["shape"])
        if detail["dtype"] is np.int8 and array.dtype != np.int8:
            scale, zero = detail["quantization"]
            array = np.clip(np.rint(array / scale) + zero, -128, 127)
        made[name] = array.astype(detail["dtype"])
    return made


def _run(path: str) -> Run:
    """A file in LiteRT's interpreter; integers that it takes or gives stand for real numbers."""
    import numpy as np
    from ai_edge_litert.interpreter import Interpreter

    runner = Interpreter(path, num_threads=1).get_signature_runner()
    taken, made = runner.get_input_details(), runner.get_output_details()

    def run(sample: Sample) -> list[Any]:
        outputs = runner(**_as_wanted(sample, taken))
        real = []
        for name, array in sorted(outputs.items()):
            scale, zero = made[name]["quantization"]
            real.append((array.astype(np.float32) - zero) * np.float32(scale) if array.dtype == np.int8 else array)
        return real

    return run


if __name__ == "__main__":
    jobs = {job.__name__: job for job in (part, plain, google, measure)}
    if len(sys.argv) > 1 and sys.argv[1] in jobs:
        jobs[sys.argv[1]](*sys.argv[2:])
        sys.exit(0)
    sys.exit(main())
