"""Training nets with `onnxq.torch`, from float to onnxruntime: accuracies, and how far both ends are apart.

    python tools/qat.py --zoo ZOO --cache FOLDER                  # every method, three seeds; goes on where it was
    python tools/qat.py --zoo ZOO --cache FOLDER --write          # puts the tables into docs/qat.md
    python tools/qat.py --step                                    # what a step costs next to a float one

A row is a net trained in float, prepared, trained quantized, exported, deployed to onnxruntime and run there. Logits
are compared with onnxruntime's optimizations off, one sample at a time, on samples without a tie: those in which no
value that is quantized lies closer to the middle between two integers than the table says, in units of its scale.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import onnxruntime
import torch
from benchmarking.report import replace_section, table
from qat_nets import NETS, ResNet18, Split, accuracy, data, fit, make

import onnxq
import onnxq.torch as qat
from onnxq.torch.quantizers import Quantizer

Tensor = torch.Tensor
HERE = Path(__file__).resolve().parent.parent
TIE = 2e-5
"""Distance from the middle between two integers, in units of the scale, that float32 sums may cross."""
COMPARED = 128
"""Samples whose logits are compared, one by one."""
BITS = ((4, 4), (2, 4))
EPOCHS = {"cnn": (10, 6), "vit": (10, 2)}
"""In float, then quantized."""
RATES = {"cnn": (3e-3, 1e-3), "vit": (2e-3, 5e-4)}
FIRST_LAST = {"cnn": ("*/stem.0/Conv", "*/head/Gemm"), "vit": ("*/patches/Conv", "*/head/Gemm")}
LAYERS = {"cnn": ("Conv", "Gemm"), "vit": ("Conv", "Gemm", "MatMul")}


@dataclass(frozen=True)
class Method:
    """How weights and activations are quantized.

    Attributes:
        given: to ``prepare``.
        learn_offset: offsets are learned.
    """

    given: dict[str, str]
    learn_offset: bool = True


_FOLLOWED = {"weight_observer": "mse:steps=12"}
"""Where ranges follow the weights in each step, fewer are tried."""
METHODS = {
    "LSQ": Method({"weight_quantizer": "lsq", "act_quantizer": "lsq"}, learn_offset=False),
    "LSQ+": Method({"weight_quantizer": "lsq", "act_quantizer": "lsq"}),
    "PACT": Method({"weight_quantizer": "dorefa", "act_quantizer": "pact", **_FOLLOWED}),
    "DoReFa": Method({"weight_quantizer": "dorefa", "act_quantizer": "fixed", **_FOLLOWED}),
    "DSQ": Method({"weight_quantizer": "dsq", "act_quantizer": "dsq", "act_observer": "ema", **_FOLLOWED}),
    "TQT": Method({"weight_quantizer": "tqt", "act_quantizer": "tqt"}),
}


def job(key: tuple[str, int, str, int, int], args: argparse.Namespace) -> dict[str, Any]:
    """A row: net, seed, method, bits of weights, bits of activations."""
    net, seed, name, weight_bits, act_bits = key
    torch.set_num_threads(1)
    started = time.process_time()
    split = data(net, args.zoo, args.cache)
    module, method = _float(net, seed, split, args.cache), METHODS[name]
    row: dict[str, Any] = {"key": list(key), "float": accuracy(_logits(module, split.test_x), split.test_y)}
    overrides = tuple((pattern, {"bits": 8}) for pattern in FIRST_LAST[net])
    options = onnxq.Options(
        weight_bits=weight_bits,
        act_bits=act_bits,
        include=LAYERS[net],
        override=dict(overrides),
    )
    model = qat.prepare(module, (split.x[:1],), options=options, **method.given)  # type: ignore[arg-type]
    qat.calibrate(model, torch.split(split.x[:512], 64))
    row["start"] = accuracy(_logits(model, split.test_x), split.test_y)
    for part, parameter in model.quantizers.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and (method.learn_offset or not part.endswith("offset")))
    learned = [p for p in model.quantizers.parameters() if p.requires_grad]
    rate = RATES[net][1]
    groups = [{"params": list(module.parameters()), "lr": rate, "weight_decay": 0.01}]
    if learned:
        groups.append({"params": learned, "lr": rate / 2, "weight_decay": 0.0})
    fit(model, split, groups, EPOCHS[net][1], seed)
    logits = _logits(model, split.test_x)
    row["torch"] = accuracy(logits, split.test_y)
    with tempfile.TemporaryDirectory(prefix="qat-") as folder:
        path = qat.export(model, Path(folder) / "trained.onnx", (split.x[:1],), input_names=["x"])
        onnxq.deploy(path, backend="onnxruntime", output=Path(folder) / "out.onnx")
        found = _run(Path(folder) / "out.onnx", split.test_x, optimize=True)
        row["onnxruntime"] = accuracy(found, split.test_y)
        plain = _run(Path(folder) / "out.onnx", split.test_x[:COMPARED], optimize=False)
    alone = [_with_tie(model, x) for x in torch.split(split.test_x[:COMPARED], 1)]
    apart = [float((p - q).abs().max() / q.abs().max()) for p, (q, _) in zip(torch.split(plain, 1), alone, strict=True)]
    row["apart"], row["ties"] = apart, [tie for _, tie in alone]
    row["cpu"] = time.process_time() - started
    return row


def _float(net: str, seed: int, split: Split, cache: Path) -> torch.nn.Module:
    """The net trained in float, once."""
    module, stored = make(net, seed), cache / f"{net}-{seed}.pt"
    if not stored.exists():
        rate = RATES[net][0]
        fit(module, split, [{"params": module.parameters(), "lr": rate, "weight_decay": 0.01}], EPOCHS[net][0], seed)
        torch.save(module.state_dict(), stored)
    module.load_state_dict(torch.load(stored))
    return module.eval()


def _logits(module: torch.nn.Module, x: Tensor) -> Tensor:
    module.eval()
    with torch.no_grad():
        return torch.cat([module(part) for part in torch.split(x, 200)])


def _run(path: Path, x: Tensor, *, optimize: bool) -> Tensor:
    """Logits in onnxruntime, sample by sample."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    level = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimize else level.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options)
    return torch.cat([torch.from_numpy(session.run(None, {"x": part.numpy()})[0]) for part in torch.split(x, 1)])


def _with_tie(model: Any, x: Tensor) -> tuple[Tensor, float]:
    """Logits of a sample, and the least distance of a value from the middle between two integers of its grid."""
    least = [0.5]

    def look(quantizer: Quantizer, args: tuple[Tensor]) -> None:
        if quantizer.weight:
            return
        scale, zero = quantizer.numbers()
        ratio = args[0].double() / scale.double()
        low, high = quantizer.spec.qmin - float(zero), quantizer.spec.qmax - float(zero)
        ratio = ratio[(ratio > low) & (ratio < high)]
        if ratio.numel():
            least.append(float((ratio - ratio.floor() - 0.5).abs().min()))

    hooks = [quantizer.register_forward_pre_hook(look) for _, quantizer in model.observing()]
    logits = _logits(model, x)
    for hook in hooks:
        hook.remove()
    return logits, min(least)


def _markdown(rows: list[dict[str, Any]]) -> str:
    """A line a net, method and width; means over the seeds, worst cases of the differences."""
    cells = []
    groups: dict[tuple[str, int, int, str], list[dict[str, Any]]] = {}
    for row in rows:
        net, _, name, weight, act = row["key"]
        groups.setdefault((net, weight, act, name), []).append(row)
    order = sorted(groups, key=lambda k: (list(NETS).index(k[0]), BITS.index((k[1], k[2])), list(METHODS).index(k[3])))
    for net, weight, act, name in order:
        group = groups[net, weight, act, name]
        pairs = [(tie, apart) for row in group for tie, apart in zip(row["ties"], row["apart"], strict=True)]
        kept = [apart for tie, apart in pairs if tie > TIE]
        worst = max((row["onnxruntime"] - row["torch"] for row in group), key=abs)
        cells.append(
            [NETS[net], f"W{weight}A{act}", name, str(len(group))]
            + [_spread([row[k] for row in group]) for k in ("float", "start", "torch", "onnxruntime")]
            + [f"{worst:+.2f}", f"{max(kept):.1e}" if kept else "", f"{100 * len(kept) / len(pairs):.0f} %"]
            + [f"{100 * sum(apart <= 1e-4 for _, apart in pairs) / len(pairs):.0f} %"]
        )
    head = ("net", "bits", "method", "seeds", "float", "calibrated", "trained, torch", "onnxruntime")
    tail = ("largest difference", "logits off ties", "samples off ties", "all within 1e-4")
    return table((*head, *tail), cells, range(3, 12))


def _spread(values: list[float]) -> str:
    mean = statistics.mean(values)
    return f"{mean:.1f}" if len(values) == 1 else f"{mean:.1f} ± {statistics.stdev(values):.1f}"


def _steps(net: str, images: Tensor, repeats: int) -> tuple[float, float]:
    """Medians of the CPU seconds of a float step and of a quantized one, measured in turn."""
    build = ResNet18 if net == "resnet18" else partial(make, net, 0)
    modules = [build(), build()]
    model = qat.prepare(modules[1], (images[:1],), options=onnxq.Options(weight_bits=4, act_bits=4))
    qat.calibrate(model, [images])
    labels = torch.zeros(len(images), dtype=torch.int64)
    pairs = [(m, torch.optim.SGD(m.parameters(), lr=1e-4)) for m in (modules[0].train(), model.train())]
    times: list[list[float]] = [[], []]
    for _ in range(repeats + 1):
        for (module, optimizer), taken in zip(pairs, times, strict=True):
            started = time.process_time()
            loss = torch.nn.functional.cross_entropy(module(images), labels)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            taken.append(time.process_time() - started)
    return statistics.median(times[0][1:]), statistics.median(times[1][1:])


def _step_table(repeats: int) -> str:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    cells = []
    for net, title, shape in (
        ("resnet18", "ResNet-18", (8, 3, 112, 112)),
        ("cnn", NETS["cnn"], (64, 1, 40, 40)),
        ("vit", NETS["vit"], (64, 1, 28, 28)),
    ):
        plain, quantized = _steps(net, torch.randn(shape), repeats)
        shown = "x".join(map(str, shape))
        cells.append([title, shown, f"{1e3 * plain:.0f}", f"{1e3 * quantized:.0f}", f"{quantized / plain:.2f}"])
    return table(("net", "batch", "float, CPU ms", "quantized, CPU ms", "times"), cells, range(2, 5))


def _jobs(args: argparse.Namespace) -> Iterator[tuple[str, int, str, int, int]]:
    for seed in range(args.seeds):
        for net in args.nets:
            for weight, act in BITS:
                for name in args.methods:
                    yield net, seed, name, weight, act


def _arguments() -> argparse.Namespace:
    zoo = os.environ.get("ONNXQ_ZOO")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--zoo", type=Path, default=Path(zoo) if zoo else None, help="its folder (default: $ONNXQ_ZOO)")
    parser.add_argument("--cache", type=Path, default=Path("qat-cache"), help="data, float nets and results.jsonl")
    parser.add_argument("--methods", type=lambda t: t.split(","), default=list(METHODS))
    parser.add_argument("--nets", type=lambda t: t.split(","), default=list(NETS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2, help="of one thread each")
    parser.add_argument("--step", action="store_true", help="measure what a step costs")
    parser.add_argument("--repeats", type=int, default=9, help="steps of each kind for --step")
    parser.add_argument("--write", action="store_true", help="trains nothing: results so far into docs/qat.md")
    return parser.parse_args()


def main() -> int:
    """Run it; exit code 1 if a job failed."""
    args = _arguments()
    page = HERE / "docs" / "qat.md"
    if args.step:
        text = _step_table(args.repeats)
        print(text)
        if args.write:
            replace_section(page, "step", text)
        return 0
    stored = args.cache / "results.jsonl"
    rows = [json.loads(line) for line in stored.read_text().splitlines()] if stored.exists() else []
    failed = False
    if not args.write:
        if args.zoo is None:
            sys.exit("give the folder of the zoo with --zoo or ONNXQ_ZOO")
        args.cache.mkdir(parents=True, exist_ok=True)
        done = {tuple(row["key"]) for row in rows}
        left = [key for key in _jobs(args) if key not in done]
        with ProcessPoolExecutor(args.processes, mp_context=get_context("spawn")) as pool:
            made = {key: pool.submit(job, key, args) for key in left}
            for key, future in made.items():
                try:
                    row = future.result()
                except Exception as error:  # of any kind: the other jobs go on
                    failed = True
                    print(f"{key}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
                    continue
                rows.append(row)
                with stored.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(key, *(f"{row[k]:.2f}" for k in ("float", "start", "torch", "onnxruntime", "cpu")), flush=True)
    text = _markdown(rows)
    print(text)
    if args.write:
        replace_section(page, "trained", text)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
