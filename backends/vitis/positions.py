"""Fix positions within the reach of the DPU's shifters.

A tensor at position p holds multiples of ``2**-p``. The DPU moves between positions by shifting, in registers of a
limited width, so positions of tensors that meet in an operator must not be too far apart. With i, w, b, o the positions
of input, weight, bias and output:

* Conv, Gemm: ``0 <= w + i - o <= 16`` (w moves); ``min(0, w + i - o - 16) <= w + i - b <= 15`` (b moves), from 0 where
  a LeakyRelu follows. amd-quark moves b up even where that cuts off the bias. Here w then moves down in its place: each
  product is less than a 250th of such a bias;
* Add, Sub: ``max(i) - min(i) <= 7`` (the larger moves); Add: ``-7 <= min(i) - o <= 25`` (o moves);
* Mul: ``0 <= sum(i) - o <= 32`` (o moves), 15 in place of 32 for x times HardSigmoid(x);
* HardSigmoid: ``0 <= i <= 15`` and ``7 <= o <= 14 + i`` (both move);
* MaxPool, AveragePool, GlobalAveragePool, Pad, Slice: input and output at the lower of both; Concat: all of them, but
  what a HardSigmoid writes, which stays at 7 as amd-quark, too, leaves it in the end.

Source: amd-quark 0.13, ``postprocess/refinement/refine.py``, which goes over the model at most five times. Here it is
repeated until nothing moves, since an alignment can travel through a chain of operators one step a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from onnxq.backends.vitis.rewrites import bounds_of, is_dpu_hard_sigmoid
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import constant_array, input_of
from onnxq.plan import Edge, Plan, Site
from onnxq.qparams import QParams

__all__ = ["adjust", "position"]

_ROUNDS = 50
_LOWEST, _HIGHEST = -127, 126
"""Positions whose scale is a normal float32 number."""
_FUSING = frozenset({"Conv", "Add", "MaxPool", "AveragePool", "GlobalAveragePool", "MatMul", "Gemm", "ConvTranspose"})
_FUSED = frozenset({"Relu", "LeakyRelu", "PRelu"})
_CLIPS = ((0.0, 6.0), (0.0, 1.0))
_AVERAGES = frozenset({"AveragePool", "GlobalAveragePool"})
_ALIGNED = frozenset({"MaxPool", "AveragePool", "GlobalAveragePool", "Pad", "Slice"})


def position(numbers: QParams) -> int:
    """The fix position of a power-of-two scale: ``-log2(scale)``."""
    return 1 - int(np.frexp(numbers.scale)[1])


def adjust(model: ir.Model, plan: Plan, numbers: MutableMapping[str, QParams]) -> list[str]:
    """Move positions until the DPU can shift between them.

    Args:
        model: the float model that the plan speaks of.
        plan: where it is quantized.
        numbers: parameters by site name; changed in place. Scales that are no power of two (learned ones) are rounded
            up to the next.

    Returns:
        A line for each tensor whose position was moved, with the first reason.
    """
    return _Adjuster(model, plan, numbers).run()


class _Adjuster:
    def __init__(self, model: ir.Model, plan: Plan, numbers: MutableMapping[str, QParams]) -> None:
        self.nodes, self.plan, self.numbers = list(all_nodes(model)), plan, numbers
        self.read = plan.by_edge()
        self.made: dict[str, Site] = {}
        self.produced: dict[str, Site] = {}
        self.together: dict[str, list[str]] = {}
        for site in plan.sites:
            if site.name not in numbers:
                continue
            if site.role == "activation":
                self.made.setdefault(site.tensor, site)
                if site.produced:
                    self.produced.setdefault(site.tensor, site)
            self.together.setdefault(plan.root(site).name, []).append(site.name)
        self.least: dict[str, int] = {}
        self.first: dict[str, tuple[int, str]] = {}
        self.moved = False

    def run(self) -> list[str]:
        rounded = self._round()
        rules: list[Callable[[ir.Node], None]] = [
            self._concat,
            self._align,
            self._shift_read,
            self._shift_write,
            self._shift_cut,
            self._shift_bias,
            self._hard_sigmoid,
            self._swish,
        ]
        for _ in range(_ROUNDS):
            self.moved = False
            for rule in rules:
                for node in self.nodes:
                    rule(node)
            if not self.moved:
                break
        notes = [f"vitis: {rounded} scales were not powers of two and were raised to the next one"] if rounded else []
        for name, (before, why) in self.first.items():
            after = position(self.numbers[name])
            if after != before:
                notes.append(
                    f"vitis: fix position of '{self.plan.by_name[name].tensor}' moved from {before} to {after}: {why}"
                )
        if self.moved:
            notes.append(f"vitis: fix positions still moved after {_ROUNDS} rounds: the compiler may move some more")
        return notes

    def _round(self) -> int:
        """Make powers of two of scales that are none."""
        count = 0
        for name, qp in self.numbers.items():
            mantissa, exponent = np.frexp(qp.scale)
            if mantissa != 0.5:
                self.numbers[name] = replace(qp, scale=np.asarray(np.ldexp(np.float32(1.0), exponent), np.float32))
                count += 1
        return count

    # -- which tensors

    def _input(self, node: ir.Node, index: int) -> Site | None:
        """The site whose integers a node reads at an input."""
        value = input_of(node, index)
        if value is None:
            return None
        site = self.read.get(Edge(node.name or "", index)) or self.produced.get(value.name or "")
        return site if site is not None and site.name in self.numbers else None

    def _inputs(self, node: ir.Node) -> list[Site]:
        """The sites at all inputs; empty where one has none."""
        found = [self._input(node, k) for k in range(len(node.inputs))]
        sites = [site for site in found if site is not None]
        return sites if len(sites) == len(node.inputs) else []

    def _output(self, node: ir.Node) -> Site | None:
        """The site behind a node, or behind what is computed together with it."""
        value = node.outputs[0]
        if (site := self.made.get(value.name or "")) is not None:
            return site
        for behind in _readers(value):
            if behind.inputs[0] is value and _connected(node, behind):
                return self.made.get(behind.outputs[0].name or "")
        return None

    def _at(self, site: Site) -> int:
        return position(self.numbers[site.name])

    def _move(self, site: Site, to: int, why: str) -> None:
        root = self.plan.root(site).name
        to = min(max(to, _LOWEST), _HIGHEST)
        before = self._at(site)
        if to == before:
            return
        self.moved = True
        self.first.setdefault(root, (before, why))
        for name in self.together[root]:
            self.numbers[name] = replace(
                self.numbers[name], scale=np.asarray(np.ldexp(np.float32(1.0), -to), np.float32)
            )

    # -- rules

    def _concat(self, node: ir.Node) -> None:
        output = self._output(node) if node.op_type == "Concat" else None
        if output is not None:
            sites = [output, *(s for k in range(len(node.inputs)) if (s := self._input(node, k)) is not None)]
            self._align_all(node, sites)

    def _align(self, node: ir.Node) -> None:
        if node.op_type in _ALIGNED:
            source, output = self._input(node, 0), self._output(node)
            before = node.inputs[0].producer() if node.inputs[0] is not None else None
            if source is None and before is not None and before.op_type == "Pad":
                source = self._input(before, 0)  # computed together: no quantizer stands between
            if source is not None and output is not None:
                self._align_all(node, [source, output])

    def _align_all(self, node: ir.Node, sites: Sequence[Site]) -> None:
        lowest = min(self._at(site) for site in sites)
        for site in sites:
            to = max(lowest, self.least.get(self.plan.root(site).name, lowest))
            self._move(site, to, f"{_named(node)} has one position for all")

    def _shift_read(self, node: ir.Node) -> None:
        sites = self._inputs(node) if node.op_type in ("Add", "Sub") else []
        if sites:
            highest, lowest = max(sites, key=self._at), min(sites, key=self._at)
            shift = self._at(highest) - self._at(lowest)
            if shift > 7:
                self._move(highest, self._at(lowest) + 7, f"{_named(node)} reads with a shift of {shift}, at most 7")

    def _shift_write(self, node: ir.Node) -> None:
        sites = self._inputs(node) if node.op_type in ("Add", "Mul") else []
        output = self._output(node)
        if not sites or output is None:
            return
        at = [self._at(site) for site in sites]
        base, low, high = (min(at), -7, 25) if node.op_type == "Add" else (sum(at), 0, 32)
        shift = base - self._at(output)
        if not low <= shift <= high:
            why = f"{_named(node)} writes with a shift of {shift}, {low} to {high}"
            self._move(output, base - min(max(shift, low), high), why)

    def _layer(self, node: ir.Node) -> tuple[Site, int, int] | None:
        """The weight of a Conv or Gemm, and the positions of its input and output."""
        if node.op_type not in ("Conv", "Gemm"):
            return None
        source, weight, output = self._input(node, 0), self._input(node, 1), self._output(node)
        if source is None or weight is None or output is None:
            return None
        return weight, self._at(source), self._at(output)

    def _shift_cut(self, node: ir.Node) -> None:
        layer = self._layer(node)
        if layer is None:
            return
        weight, source, output = layer
        shift = self._at(weight) + source - output
        if not 0 <= shift <= 16:
            why = f"{_named(node)} cuts with a shift of {shift}, 0 to 16"
            self._move(weight, min(max(shift, 0), 16) + output - source, why)

    def _shift_bias(self, node: ir.Node) -> None:
        layer, bias = self._layer(node), self._input(node, 2)
        if layer is None or bias is None:
            return
        weight, source, output = layer
        sums = self._at(weight) + source
        leaky = any(reader.op_type == "LeakyRelu" for reader in _readers(node.outputs[0]))
        low = 0 if leaky else min(0, sums - output - 16)
        shift = sums - self._at(bias)
        if not low <= shift <= 15:
            why = f"{_named(node)} adds its bias with a shift of {shift}, {low} to 15"
            if shift > 15 and _outgrows(node.inputs[2], sums - 15):
                self._move(weight, max(self._at(bias) + 15, output) - source, why)
                sums = self._at(weight) + source
                shift = sums - self._at(bias)
            self._move(bias, sums - min(max(shift, low), 15), why)

    def _hard_sigmoid(self, node: ir.Node) -> None:
        if not is_dpu_hard_sigmoid(node):
            return
        source, output = self._input(node, 0), self._output(node)
        if source is None or output is None:
            return
        self._move(source, min(max(self._at(source), 0), 15), f"{_named(node)} reads at 0 to 15")
        highest = 14 + self._at(source)
        self._move(output, min(max(self._at(output), 7), highest), f"{_named(node)} writes at 7 to {highest}")
        self.least[self.plan.root(output).name] = 7

    def _swish(self, node: ir.Node) -> None:
        if node.op_type != "Mul" or len(node.inputs) != 2:
            return
        gated = {id(v) for v in node.inputs if v is not None and any(is_dpu_hard_sigmoid(r) for r in _readers(v))}
        sites, output = self._inputs(node), self._output(node)
        if not gated or not sites or output is None:
            return
        total = sum(self._at(site) for site in sites)
        shift = total - self._at(output)
        if not 0 <= shift <= 15:
            why = f"{_named(node)} of x and HardSigmoid(x) writes with a shift of {shift}, 0 to 15"
            self._move(output, total - min(max(shift, 0), 15), why)


def _outgrows(value: ir.Value | None, at: int) -> bool:
    """Whether a constant holds numbers beyond those of a position, by half a step and more."""
    array = constant_array(value)
    return array is not None and bool(np.ldexp(np.abs(array).max(initial=0.0), at) >= 127.5)


def _readers(value: ir.Value) -> Iterator[ir.Node]:
    return (use.node for use in value.uses())


def _connected(node: ir.Node, behind: ir.Node) -> bool:
    """Whether a node behind another belongs to it: no quantizer stands between."""
    if behind.op_type == "Mul":
        return node.op_type in _AVERAGES or node.op_type == "HardSigmoid"
    fused = behind.op_type in _FUSED or (behind.op_type == "Clip" and bounds_of(behind) in _CLIPS)
    return fused and node.op_type in _FUSING


def _named(node: ir.Node) -> str:
    return f"{node.op_type} '{node.name}'"
