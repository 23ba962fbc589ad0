"""Float model against quantized model on data: how far every output is, and where in the graph the error arises.

The outputs come from the two models as they are. For the tensors in between both models are run once more with extra
outputs, in groups so that memory stays bounded. A tensor is compared as its readers see it: behind the DequantizeLinear
(or ``FakeQuantize``) of the quantized model, where it has one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from onnxq.calibration.data import open_data
from onnxq.calibration.taps import observe
from onnxq.errors import ModelError
from onnxq.graph.load import ModelSource, load
from onnxq.graph.shapes import infer_shapes
from onnxq.graph.values import is_constant
from onnxq.metrics import ErrorMeter, Errors, jsonable
from onnxq.options import ImageOptions
from onnxq.progress import Reporter, Silent
from onnxq.quantized import Quantized
from onnxq.session import Session

__all__ = ["Comparison", "TensorErrors", "compare"]

_GIVING = ("DequantizeLinear", "FakeQuantize", "NNIEQuantize")
_FIRST_GROUP = 32
"""Tensors tapped at once on the first sample, which tells their sizes."""
_USUAL = 40.0
"""dB that 8 bits give a well-behaved tensor; what is lost above is not counted as a drop."""
_BUDGET = 256 << 20
"""Bytes of tapped tensors at once, in each model."""


@dataclass(frozen=True)
class TensorErrors:
    """A tensor inside the model.

    Attributes:
        tensor: its name in the float model.
        node: name of the node that writes it, empty for a model input.
        op: that node's operator type, ``"Input"`` for a model input.
        quantized: it is quantized itself; else only what comes before it is.
        errors: how far it is from the float one.
        drop: dB lost at this node: the lowest SQNR of what it is computed from, at most 40, less its own; NaN if that
            is unknown.
    """

    tensor: str
    node: str
    op: str
    quantized: bool
    errors: Errors
    drop: float = math.nan


@dataclass(frozen=True)
class Comparison:
    """What `compare` found.

    Attributes:
        samples: number of samples compared.
        outputs: model output → its errors.
        tensors: tensors that both models have, in the order of the float graph.
        unmatched: float tensors of the float model that the quantized one has no more (fused or folded away).
    """

    samples: int
    outputs: Mapping[str, Errors]
    tensors: tuple[TensorErrors, ...] = ()
    unmatched: tuple[str, ...] = field(default=())

    @property
    def worst(self) -> tuple[str, Errors] | None:
        """The float output with the lowest SQNR, None if no output is float."""
        scored = [(name, errors) for name, errors in self.outputs.items() if not math.isnan(errors.sqnr)]
        return min(scored, key=lambda pair: pair[1].sqnr) if scored else None

    def largest_drops(self, count: int = 5) -> list[TensorErrors]:
        """The tensors where most dB are lost at once, worst first."""
        found = [t for t in self.tensors if t.drop > 0]
        return sorted(found, key=lambda t: -t.drop)[:count]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data; see `onnxq.metrics.jsonable` for NaN and infinities."""
        return {
            "samples": self.samples,
            "outputs": {name: errors.to_dict() for name, errors in self.outputs.items()},
            "tensors": [
                {
                    "tensor": t.tensor,
                    "node": t.node,
                    "op": t.op,
                    "quantized": t.quantized,
                    "drop": jsonable(t.drop),
                    **t.errors.to_dict(),
                }
                for t in self.tensors
            ],
            "unmatched": list(self.unmatched),
        }


def compare(
    reference: ModelSource,
    quantized: ModelSource | Quantized,
    data: Any,
    *,
    tensors: bool = True,
    samples: int | None = None,
    image: ImageOptions | None = None,
    providers: Sequence[str] = (),
    custom_op_library: str | None = None,
    reporter: Reporter | None = None,
) -> Comparison:
    """Run both models over the same data, one sample at a time.

    Args:
        reference: the float model: path, ``ModelProto`` or ``ir.Model``.
        quantized: the other model, or a `Quantized`.
        data: see `onnxq.calibration.data.open_data`.
        tensors: compare the tensors in between, too.
        samples: at most so many samples.
        image: how pictures are read.
        providers: execution providers of onnxruntime; empty means the CPU.
        custom_op_library: shared library with the models' custom operators.
        reporter: shows progress.

    Raises:
        ModelError: a model is invalid, or the two do not have the same inputs and outputs.
        DataError: the data does not fit.
        ExecutionError: onnxruntime cannot load or run a model.
    """
    options: dict[str, Any] = {"providers": providers, "custom_op_library": custom_op_library}
    first = load(reference)
    second = quantized.rendered() if isinstance(quantized, Quantized) else load(quantized)
    _same_interface(first, second)
    base, other = Session(first, **options), Session(second, **options)
    feeds = open_data(data, base.inputs, image=image, samples=samples)
    meters = {info.name: ErrorMeter() for info in base.outputs}
    inner = _Inner(first, second, options) if tensors else None
    count = 0
    with (reporter or Silent()).phase("compare", total=feeds.length) as advance:
        for count, feed in enumerate(feeds, 1):
            expected, got = base.run(feed), other.run(feed)
            for name, meter in meters.items():
                meter.update(expected[name], got[name], feeds.index_of(count - 1))
            del expected, got
            if inner is not None:
                inner.run(feed, feeds.index_of(count - 1))
            advance(count)
    outputs = {name: meter.result() for name, meter in meters.items()}
    if inner is None:
        return Comparison(count, outputs)
    return Comparison(count, outputs, inner.result(), tuple(inner.unmatched))


def _same_interface(first: ir.Model, second: ir.Model) -> None:
    for what in ("inputs", "outputs"):
        names = [
            [str(v.name) for v in getattr(m.graph, what) if not (what == "inputs" and v.const_value is not None)]
            for m in (first, second)
        ]
        if set(names[0]) != set(names[1]):
            both = " and ".join(", ".join(map(repr, sorted(n))) or "none" for n in names)
            hint = "Give the float model and the model that was made from it."
            raise ModelError(f"the models have different {what}: {both}", hint=hint)


class _Group(NamedTuple):
    """Both models with some tensors shown: float tensor → the output that shows it, in each model."""

    first: Session
    second: Session
    shown: dict[str, tuple[str, str]]


class _Inner:
    """The tensors between inputs and outputs: which there are, and their meters."""

    def __init__(self, first: ir.Model, second: ir.Model, options: Mapping[str, Any]) -> None:
        infer_shapes(first)
        infer_shapes(second)
        self._models, self._options = (first, second), options
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
        sessions = [Session(tapped.model, **self._options) for tapped in taps]
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
            drop = min(_USUAL, *before) - errors.sqnr if before else math.nan
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
