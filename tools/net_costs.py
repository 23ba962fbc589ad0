"""Convolutions of a whole model in onnxruntime's CPU provider, float against 8-bit integer, beside what the table says
of them: within a net their data and weights come from farther away than in ``conv_costs.py``.

The model is quantized as a whole (``--placement all``) with ranges of random data, which say nothing of accuracy. Times
are medians of onnxruntime's own profile on one thread, in microseconds; writing the profile takes about two of each.

    python tools/net_costs.py MODEL.onnx [--runs 40]
"""

from __future__ import annotations

import argparse
import collections
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from kernel_times import kernel_times

import onnxq
from onnxq import Options
from onnxq.backends.onnxruntime import BACKEND
from onnxq.for_processor import for_processor
from onnxq.graph.traverse import all_nodes


def profile(model: Path, feeds: Mapping[str, Any], runs: int) -> dict[str, tuple[str, float]]:
    """Node → operator and microseconds."""
    kernels = kernel_times(model, feeds, runs)
    return {name: (kernel.op, statistics.median(kernel.times)) for name, kernel in kernels.items()}


def random_feeds(model: ir.Model) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    feeds = {}
    for value in model.graph.inputs:
        shape = [d if isinstance(d, int) else 1 for d in value.shape or ()]
        dtype = value.dtype.numpy() if value.dtype is not None else np.dtype(np.float32)
        feeds[value.name or ""] = (
            rng.standard_normal(shape).astype(dtype) if dtype.kind == "f" else rng.integers(0, 2, shape).astype(dtype)
        )
    return feeds


def in_float(conv: ir.Node, times: Mapping[str, tuple[str, float]]) -> float | None:
    """A fused convolution has the name of the activation function behind it, or of its output."""
    made = conv.outputs[0]
    names = [made.name, *(use.node.outputs[0].name for use in made.uses())]
    known = {f"{name}{ending}" for name in names for ending in ("", "_nchwc")} | {conv.name, f"fused {conv.name}"}
    return next((time for name, (op, time) in times.items() if name in known and op.endswith("Conv")), None)


def in_integers(conv: ir.Node, times: Mapping[str, tuple[str, float]]) -> float | None:
    found = (t for name, (op, t) in times.items() if op == "QLinearConv" and name.startswith(f"{conv.name}_token"))
    return next(found, None)


def kind_of(weight: Sequence[int], group: int) -> str:
    if group == 1:
        return f"{'x'.join(map(str, weight[2:]))}"
    return f"{'depthwise' if weight[1] == 1 and group == weight[0] else 'groups'} {'x'.join(map(str, weight[2:]))}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--runs", type=int, default=40)
    asked = parser.parse_args()
    model = ir.from_proto(onnx.shape_inference.infer_shapes(onnx.load(asked.model)))
    feeds = random_feeds(model)
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "q.onnx"
        onnxq.quantize(asked.model, [feeds] * 2, options=Options(effort="fast", placement="all")).save(whole)
        plain, quantized = profile(asked.model, feeds, asked.runs), profile(whole, feeds, asked.runs)
    rule = for_processor(BACKEND, Options()).rules["Conv"]
    sums: dict[str, list[float]] = collections.defaultdict(lambda: [0.0] * 5)
    print("weight, group, positions: float (table), integer (table)")
    for conv in all_nodes(model):
        if conv.op_type != "Conv" or conv.outputs[0].shape is None or conv.inputs[1] is None:
            continue
        times = in_float(conv, plain), in_integers(conv, quantized)
        weight, made = ([*v.shape.numpy()] if v.shape is not None else [] for v in (conv.inputs[1], conv.outputs[0]))
        if times[0] is None or times[1] is None:
            continue
        group = conv.attributes.get_int("group", 1)
        by_table = [cost / 1000 for cost in rule.costs(conv, float(np.prod(made)))]
        row = (times[0], by_table[0], times[1], by_table[1])
        print(f"{weight} {group} {made[2:]}: {row[0]:.0f} ({row[1]:.0f}), {row[2]:.0f} ({row[3]:.0f})")
        kind = kind_of(weight, group)
        sums[kind] = [total + one for total, one in zip(sums[kind], (*row, 1), strict=True)]
    for kind, (a, b, c, d, count) in sorted(sums.items()):
        print(f"{kind}, {count:.0f}: {a:.0f} ({b:.0f}), {c:.0f} ({d:.0f})")


if __name__ == "__main__":
    main()
