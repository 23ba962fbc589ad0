"""Every target on real models: what is quantized, how far it is from float, and what the target's runtime says of it.

    python tools/target_figures.py --zoo ZOO --environments ENVIRONMENTS           # all, into docs/targets/figures.md
    python tools/target_figures.py --zoo ZOO --targets qnn snpe --models mnist_cnn # a part, on the terminal

ZOO holds ``models/<name>/model.onnx`` and ``calib.npz``; ENVIRONMENTS the runtimes as ``tools/runtimes.py`` makes them.
Calibrated with at most 32 samples, compared on 4. Every job runs in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from onnxq import plugins
from onnxq.backend_choice import backend_named
from onnxq.catalog import backends
from onnxq.console.terminal import plural

PAGE = Path(__file__).resolve().parent.parent / "docs" / "targets" / "figures.md"
MODELS = ("mnist_cnn", "mnist_unet", "fashion_vit", "effnet_lite0", "ppocr_det")
SAMPLES, COMPARED = 32, 4
SHAPES = {"ppocr_det": ("--shape", "x=1x3x480x480")}
"""Sizes that a model leaves free, and most chips want fixed."""
_TOP = """\
<!-- written by tools/target_figures.py -->

# Targets on real models

Calibrated with at most 32 samples, everything at its defaults; ppocr_det with `--shape x=1x3x480x480`. **quantized**:
nodes in integers, those that others take in included, of all float nodes. **SQNR**: of the worst output against the
float model, simulated in onnxruntime, in dB. **runtime**: the target's own runtime against onnxruntime without
optimizations on 4 samples, in dB, and the largest difference in steps of the output's quantizer, where it has one;
`inf` is equal to the last bit, a target without a runtime is read back and simulated. **layers**: each layer computed
from equal integers there and in onnxruntime (2 samples): how many of the results differ, and by how many steps at most.
Where layers agree to a step, what differs at the output is those steps adding up. **integer**, **float**: operators in
the runtime, as far as it tells.

"""


def main() -> int:
    """Run the jobs and write the table."""
    parser = argparse.ArgumentParser(description="Every target on real models.")
    parser.add_argument("--zoo", type=Path, required=True)
    parser.add_argument("--environments", type=Path)
    parser.add_argument("--targets", nargs="*", help="all without any")
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--time-limit", type=float, default=400.0, metavar="S", help="for each step of a job")
    args = parser.parse_args()
    for name in plugins.names("onnxq.runtimes") if args.environments else ():
        python = args.environments.resolve() / name / "bin" / "python"
        if python.exists():
            os.environ.setdefault(f"ONNXQ_{name.upper()}_PYTHON", str(python))
    rows = []
    for target in args.targets or [b.name for b in backends()]:
        for model in args.models:
            row = measure(target, args.zoo / "models" / model, args.time_limit)
            print(row, flush=True)
            rows.append(row)
    columns = ("target", "model", "quantized", "SQNR", "runtime", "layers", "integer", "float", "s")
    head = f"| {' | '.join(columns)} |\n|---|---|{'--:|' * (len(columns) - 2)}\n"
    if not args.targets and tuple(args.models) == MODELS:
        PAGE.parent.mkdir(parents=True, exist_ok=True)
        PAGE.write_text(_TOP + head + "\n".join(rows) + "\n")
        print(f"wrote {PAGE}")
    return 0


def measure(target: str, folder: Path, limit: float) -> str:
    """A row of the table."""
    model, data = str(folder / "model.onnx"), str(folder / "calib.npz")
    with tempfile.TemporaryDirectory() as name:
        start = time.monotonic()
        code, made = _onnxq("quantize", model, "--data", data, "--samples", SAMPLES, "--backend", target,
                            *SHAPES.get(folder.name, ()), "-o", name,
                            limit=limit)  # fmt: skip
        seconds = time.monotonic() - start
        if code not in (0, 3) or not isinstance(made, dict):
            return f"| {target} | {folder.name} | {_short(made)} | | | | | | {seconds:.0f} |"
        report = made
        done, total = report["integer_nodes"], report["nodes"]
        outputs = (report["verification"] or {}).get("outputs", {})
        sqnr = min((_float(e["sqnr"]) for e in outputs.values()), default=float("nan"))
        found = _verified(name, data, target, limit)
    said = _short(found) if not isinstance(found, dict) else _agreement(found)
    integer, floating = (len(found[k]) if isinstance(found, dict) else "" for k in ("integer", "floating"))
    layers = _layers(found["layers"]) if isinstance(found, dict) else ""
    counts = f"{done} of {total} | {sqnr:.1f} | {said} | {layers} | {integer} | {floating}"
    return f"| {target} | {folder.name} | {counts} | {seconds:.0f} |"


def _verified(artifact: str, data: str, target: str, limit: float) -> dict[str, Any] | str:
    """What ``onnxq verify`` finds, layer by layer where the runtime computes and the artifact has layers to part."""
    command = ("verify", artifact, "--data", data, "--samples", COMPARED, "--backend", target)
    runtime = backend_named(target).runtime
    if runtime is not None and plugins.find("onnxq.runtimes", runtime).runs:
        _, found = _onnxq(*command, "--layers", limit=limit)
        if isinstance(found, dict):
            return found
    return _onnxq(*command, limit=limit)[1]


def _layers(layers: list[dict[str, Any]]) -> str:
    if not layers:
        return ""
    differing, values = sum(one["differing"] for one in layers), sum(one["values"] for one in layers)
    if not differing:
        return "equal"
    return f"{100 * differing / values:.2g} %, {plural(max(one['steps'] for one in layers), 'step')}"


def _agreement(found: dict[str, Any]) -> str:
    decibels = [_float(e["sqnr"]) for e in found["outputs"].values()]
    decibels = [d for d in decibels if d == d]
    steps = [_float(v) for v in found["lsb"].values()]
    text = f"{min(decibels):.1f}" if decibels else "compiled"
    if found["runtime"] is None:
        return f"simulated: {text}" if decibels else "valid, runs"
    return text + (f", {max(steps):.3g} steps" if steps else "")


def _onnxq(verb: str, *args: object, limit: float) -> tuple[int, dict[str, Any] | str]:
    command = [sys.executable, "-m", "onnxq", verb, *map(str, args), "--json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return -1, f"more than {limit:g} s"
    try:
        document = json.loads(done.stdout)
        return done.returncode, document["error"]["what"] if "error" in document else document
    except ValueError:
        lines = done.stderr.strip().splitlines()
        return done.returncode, lines[-1] if lines else f"exit code {done.returncode}"


def _float(value: object) -> float:
    return float("nan") if value is None else float(str(value))


def _short(said: object) -> str:
    return str(said).replace("|", "/")[:120]


if __name__ == "__main__":
    sys.exit(main())
