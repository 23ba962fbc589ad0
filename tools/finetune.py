"""`onnxq finetune` on a model of the zoo: the zoo's metrics before and after, at a time limit.

    python tools/finetune.py --zoo ZOO --minutes 15                              # effnet_lite0 at W4A8, W4A4 and W8A8
    python tools/finetune.py --zoo ZOO --more photos.npz --bits 4,8 --write      # with samples of one's own as well

Every row is two runs of the command line, `onnxq quantize` and `onnxq finetune`, on the same samples: the model's
calibration data, and those of `--more`, an .npz file with the same input.
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

import numpy as np
from benchmarking.limits import Limits
from benchmarking.report import replace_section, table
from benchmarking.zoo import evaluate

HERE = Path(__file__).resolve().parent.parent
FIRST_LAST = {"effnet_lite0": ("/_conv_stem/Conv", "/_fc/Gemm")}
"""Layers that keep 8 bits."""
SHOWN = ("photo_agree", "cifar_acc", "stamp_top1", "photo_sqnr_db")
BITS = ("4,8", "4,4", "8,8")


def main() -> int:
    """Run and report."""
    args = _arguments()
    with tempfile.TemporaryDirectory() as folder:
        samples = Path(folder, "samples.npz")
        count = _join(args, samples)
        rows = [row for bits in args.bits for row in _rows(args, bits, samples, Path(folder))]
    print(json.dumps(rows, indent=1))
    head = ("bits", "", *SHOWN, "steps", "wall s")
    cells = [
        [row["bits"], row["what"], *(f"{row[k]:.3f}" for k in SHOWN), row["steps"], str(row["wall"])] for row in rows
    ]
    text = f"{args.name}, {count} samples, seed {args.seed}:\n\n" + table(head, cells, range(2, len(head)))
    print(text)
    if args.write:
        replace_section(HERE / "docs" / "qat.md", args.section, text)
    return 0


def _join(args: argparse.Namespace, path: Path) -> int:
    """Write all samples into one file; their number."""
    with np.load(args.zoo / "models" / args.name / "calib.npz") as calib:
        arrays = {name: calib[name] for name in calib.files}
    for more in args.more:
        with np.load(more) as found:
            arrays = {name: np.concatenate([array, found[name]]) for name, array in arrays.items()}
    np.savez(path, **arrays)
    return len(next(iter(arrays.values())))


def _rows(args: argparse.Namespace, bits: str, samples: Path, folder: Path) -> list[dict[str, Any]]:
    weights, activations = map(int, bits.split(","))
    model, before, after = args.zoo / "models" / args.name / "model.onnx", folder / "q.onnx", folder / "t.onnx"
    flags = ["--weight-bits", str(weights), "--act-bits", str(activations)]
    if weights < 8:
        flags += ["--algorithm", "gptq:prefix=true", "--algorithm", "bias_correction"]
        kept = "bits=8" if activations < 8 else "weight_bits=8"
        flags += [part for layer in FIRST_LAST.get(args.name, ()) for part in ("--override", f"{layer}={kept}")]
    if activations < 8:
        flags += ["--format", "fake-quantize"]
    rows = []
    common = ["--data", str(samples), "--json", "--seed", str(args.seed)]
    quantize = ["quantize", str(model), *common, *flags, "-o", str(before)]
    finetune = ["finetune", str(before), "--float", str(model), *common, "--minutes", str(args.minutes)]
    for what, verb, path in (
        ("post-training", quantize, before),
        ("fine-tuned", [*finetune, "--batch", str(args.batch), "-o", str(after)], after),
    ):
        start = time.monotonic()
        answer = _onnxq(verb)
        seconds = time.monotonic() - start
        notes = [note for note in answer["notes"] if note.startswith("finetune: ")]
        steps = notes[-1].split()[1] if notes else ""
        metrics, error = evaluate(args.zoo, args.name, path, Limits())
        if error:
            raise SystemExit(f"{path.name} was not evaluated: {error}")
        name = f"W{weights}A{activations}" if what == "post-training" else ""
        rows.append({"bits": name, "what": what, "wall": round(seconds), "steps": steps, "notes": notes, **metrics})
        print(rows[-1], file=sys.stderr, flush=True)
    return rows


def _onnxq(arguments: list[str]) -> dict[str, Any]:
    """What a verb says with ``--json``."""
    done = subprocess.run([sys.executable, "-m", "onnxq", *arguments], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, 3):
        raise SystemExit(f"onnxq {' '.join(arguments)} failed with exit code {done.returncode}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    zoo = os.environ.get("ONNXQ_ZOO")
    parser.add_argument("--zoo", type=Path, default=Path(zoo) if zoo else None, help="its folder (default: $ONNXQ_ZOO)")
    parser.add_argument("--name", default="effnet_lite0", help="the model")
    parser.add_argument("--bits", action="append", metavar="W,A", help=f"default: {' '.join(BITS)}")
    parser.add_argument("--more", type=Path, action="append", default=[], help="more samples, an .npz file")
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--section", default="finetuned", help="of docs/qat.md, where --write puts the table")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    if args.zoo is None:
        parser.error("give the folder of the zoo with --zoo or ONNXQ_ZOO")
    args.zoo, args.bits = args.zoo.resolve(), args.bits or list(BITS)
    return args


if __name__ == "__main__":
    sys.exit(main())
