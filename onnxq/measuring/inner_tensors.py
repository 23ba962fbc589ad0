"""The tensors between inputs and outputs of a float and a quantized model, compared as their readers see them.

Both models are run with extra outputs, in groups so that memory stays bounded. A tensor is read behind the
DequantizeLinear (or ``FakeQuantize``) of the quantized model, where it has one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from onnxq.calibration.taps import observe
from onnxq.graph.shapes import infer_shapes
from onnxq.graph.values import is_constant
from onnxq.measuring.comparison import TensorErrors
from onnxq.measuring.metrics import ErrorMeter, Errors
from onnxq.ort.session import Session, open_anyhow

__all__ = ["InnerTensors"]

_GIVING = ("DequantizeLinear", "FakeQuantize", "NNIEQuantize")
_FIRST_GROUP = 32
"""Tensors tapped at once on the first sample, which tells their sizes."""
_USUAL = 40.0
"""dB that 8 bits give a well-behaved tensor; what is lost above is not counted as a drop."""
_BUDGET = 256 << 20
"""Bytes of tapped tensors at once, in each model."""


class _Group(NamedTuple):
    """Both models with some tensors shown: float tensor → the output that shows it, in each model."""

    first: Session
    second: Session
    shown: dict[str, tuple[str, str]]


class InnerTensors:
    """The tensors between inputs and outputs: which there are, and their meters."""

    def __init__(self, first: ir.Model, second: ir.Model, options: Mapping[str, Any], *, optimize: bool = True) -> None:
        infer_shapes(first)
        infer_shapes(second)
        self._models, self._options, self._optimize = (first, second), options, (True, optimize)
        seen = _seen_by_readers(second)
        self._quantized = {v.name for n in second.graph.all_nodes() if n.op_type in _GIVING for v in n.outputs}
        outputs = {value.name for value in first.graph.outputs}
        self._producers: dict[str, ir.Value] = {}
        self._pairs: dict[str, str] = {}  # float tensor → where the quantized model shows it
        self.unmatched: list[str] = []
        for value in _values(first):
            name = str(value.name)
            if name in self._producers or value.dtype not in (None, ir.DataType.FLOAT):
                continue
            self._producers[name] = value
            if value.producer() is None:
                if (shown := seen.get(name, name)) != name:
                    self._pairs[name] = shown
            elif name in seen:
                self._pairs[name] = seen[name]
            elif name not in outputs:
                self.unmatched.append(name)
        self._meters = {name: ErrorMeter() for name in self._pairs}
        self._bytes: dict[str, int] = {}
        self._sessions: list[_Group] | None = None

    def run(self, feed: Mapping[str, np.ndarray], sample: int) -> None:
        """Compare all tensors on one sample."""
        if self._sessions is None:  # the first sample tells the sizes
            names = list(self._pairs)
            groups = [names[i : i + _FIRST_GROUP] for i in range(0, len(names), _FIRST_GROUP)]
            opened: list[_Group] = []
            for group in groups:
                if (sessions := self._open(group)) is not None:
                    self._step(sessions, feed, sample)
                    opened = [sessions]
            if len(groups) > 1:
                opened = [s for group in self._groups() if (s := self._open(group)) is not None]
            self._sessions = opened
            return
        for sessions in self._sessions:
            self._step(sessions, feed, sample)

    def _groups(self) -> Iterable[list[str]]:
        group: list[str] = []
        total = 0
        for name, size in self._bytes.items():
            if group and total + size > _BUDGET:
                yield group
                group, total = [], 0
            group.append(name)
            total += size
        if group:
            yield group

    def _open(self, names: Sequence[str]) -> _Group | None:
        taps = [
            observe(model, list(wanted), keep_outputs=False)
            for model, wanted in zip(self._models, (names, [self._pairs[n] for n in names]), strict=True)
        ]
        shown = {
            name: (taps[0].outputs[name], taps[1].outputs[self._pairs[name]])
            for name in names
            if name in taps[0].outputs and self._pairs[name] in taps[1].outputs
        }
        if not shown:
            return None
        sessions = [
            open_anyhow(tapped.model, optimize=how, **self._options)
            for tapped, how in zip(taps, self._optimize, strict=True)
        ]
        return _Group(sessions[0], sessions[1], shown)

    def _step(self, group: _Group, feed: Mapping[str, np.ndarray], sample: int) -> None:
        expected = _run(group.first, feed, [a for a, _ in group.shown.values()])
        got = _run(group.second, feed, [b for _, b in group.shown.values()])
        for name, (a, b) in group.shown.items():
            self._meters[name].update(expected[a], got[b], sample)
            self._bytes[name] = max(self._bytes.get(name, 0), expected[a].nbytes)

    def result(self) -> tuple[TensorErrors, ...]:
        """Errors of all tensors that were computed, in graph order, with the dB lost at each."""
        found = {name: meter.result() for name, meter in self._meters.items()}
        found = {name: errors for name, errors in found.items() if errors.elements}
        result = []
        for name, errors in found.items():
            node = self._producers[name].producer()
            before = [found[n].sqnr for n in self._before(node, found)] if node is not None else []
            drop = min([_USUAL, *before]) - errors.sqnr if node is not None else math.nan
            quantized = self._pairs[name] != name or name in self._quantized
            op = node.op_type if node is not None else "Input"
            result.append(TensorErrors(name, node.name or "" if node is not None else "", op, quantized, errors, drop))
        return tuple(result)

    def _before(self, node: ir.Node, found: Mapping[str, Errors]) -> list[str]:
        """The nearest compared tensors that a node is computed from."""
        stack, visited, result = [v for v in node.inputs if v is not None], set(), []
        while stack:
            value = stack.pop()
            if value in visited:
                continue
            visited.add(value)
            if value.name in found and value.name is not None:
                result.append(value.name)
            elif (producer := value.producer()) is not None:
                stack += [v for v in producer.inputs if v is not None]
        return result


def _run(session: Session, feed: Mapping[str, np.ndarray], outputs: Iterable[str]) -> dict[str, np.ndarray]:
    needed = {info.name for info in session.inputs}
    return session.run({name: x for name, x in feed.items() if name in needed}, list(dict.fromkeys(outputs)))


def _values(model: ir.Model) -> Iterable[ir.Value]:
    """Model inputs and node outputs in graph order, subgraphs included."""
    yield from (v for v in model.graph.inputs if v.const_value is None)
    for node in model.graph.all_nodes():
        if node.op_type not in ("Constant", "QuantizeLinear", "DequantizeLinear"):
            yield from (v for v in node.outputs if v.name)


def _seen_by_readers(model: ir.Model) -> dict[str, str]:
    """Float tensor → the tensor that its readers see: what a quantizer behind it gives back, or itself."""
    result: dict[str, str] = {}
    for value in (*model.graph.inputs, *(v for node in model.graph.all_nodes() for v in node.outputs)):
        if not value.name or is_constant(value):
            continue
        result[value.name] = value.name
        for use in value.uses():
            if use.idx == 0 and (shown := _behind(use.node)) is not None:
                result[value.name] = shown
    return result


def _behind(node: ir.Node) -> str | None:
    """Name of the float tensor behind a quantizer node, None if the node is no quantizer."""
    if node.op_type in ("FakeQuantize", "NNIEQuantize"):
        return node.outputs[0].name
    if node.op_type == "QuantizeLinear":
        for use in node.outputs[0].uses():
            if use.idx == 0 and use.node.op_type == "DequantizeLinear":
                return use.node.outputs[0].name
    return None
