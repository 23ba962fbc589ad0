"""The tensors between inputs and outputs of a float and a quantized model, compared as their readers see them.

Both models are run with extra outputs, in groups so that memory stays bounded. A tensor is read behind the
DequantizeLinear (or ``FakeQuantize``) of the quantized model, where it has one, and behind that of the other, where it
carries quantizers too: in front of one that saturates as a Relu does, a tensor is not what its readers compute with.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Container, Iterable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxq.calibration.mask_reach import lowest_number
from onnxq.calibration.share_out import tensor_bytes
from onnxq.calibration.tensor_statistics import SENTINEL, TensorStatistics
from onnxq.graph.passes.constants import lift_constants
from onnxq.graph.passes.prune import eliminate_identity
from onnxq.graph.picking import picking
from onnxq.graph.recognition.groups import find_groups
from onnxq.graph.recognition.masks import before_softmax
from onnxq.graph.shapes import infer_shapes
from onnxq.graph.traverse import all_nodes, with_bodies
from onnxq.graph.values import constant_array, is_constant
from onnxq.measuring.as_read import as_read
from onnxq.measuring.comparison import TensorErrors
from onnxq.measuring.metrics import ErrorMeter, Errors
from onnxq.measuring.paired import Pair, PairedTensors, paired_tensors
from onnxq.measuring.rescaled import rescaled_apart

__all__ = ["InnerTensors"]

_GIVING = ("DequantizeLinear", "FakeQuantize", "NNIEQuantize")
_FOLDED = ("Add", "BatchNormalization", "Div", "Mul", "Sub")
"""Operators that may be folded into the layer in front of them."""
_USUAL = 40.0
"""dB that 8 bits give a well-behaved tensor; what is lost above is not counted as a drop."""


class InnerTensors:
    """The tensors between inputs and outputs: which there are, and their meters.

    Attributes:
        unmatched: names of tensors that the quantized model has no more.
        rescaled: names of those that an algorithm has scaled in one of the models, so that they cannot be compared.
        picked_from: names of those that the model picks from, see :mod:`onnxq.graph.picking`; what comes behind is left
            out.
    """

    def __init__(self, first: ir.Model, second: ir.Model, options: Mapping[str, Any], *, optimize: bool = True) -> None:
        infer_shapes(first)
        infer_shapes(second)
        self._models, self._options, self._optimize = (first, second), options, optimize
        self._expected = _seen_by_readers(first)
        self._quantized = {v.name for n in second.graph.all_nodes() if n.op_type in _GIVING for v in n.outputs}
        picks = picking(first)
        self.picked_from = picks.tensors if picks.nodes else ()
        behind = {value.name for node in picks.nodes for inner in with_bodies(node) for value in inner.outputs}
        self._producers: dict[str, ir.Value] = {}
        self._pairs: dict[str, str] = {}  # float tensor → where the quantized model shows it
        self.unmatched: list[str] = []
        self.rescaled: list[str] = []
        self._pair(behind)
        self._meters = {name: ErrorMeter() for name in self._pairs}
        self._before_softmax = {value.name for value in before_softmax(first)}
        self._names: dict[Pair, str] = {}
        self._groups: list[PairedTensors] | None = None
        self._functions = {name: group for group in _functions(first) if self._all_float(group) for name in group}

    def _all_float(self, group: Collection[str]) -> bool:
        """Whether no tensor of a function is quantized, but what it gives."""
        *inner, _ = group
        return all(name not in self._quantized and self._pairs.get(name, name) == name for name in inner)

    def _pair(self, left_out: Container[str | None]) -> None:
        """Find the tensors of the float model in the quantized one."""
        first, second = self._models
        seen, apart = _seen_by_readers(second), rescaled_apart(first, second)
        outputs = {value.name for value in first.graph.outputs}
        for value in _values(first):
            name = str(value.name)
            if name in self._producers or name in left_out or value.dtype not in (None, ir.DataType.FLOAT):
                continue
            self._producers[name] = value
            if value.producer() is None:
                if (shown := seen.get(name, name)) != name:
                    self._pairs[name] = shown
            elif name in seen and name in apart and name not in outputs:
                self.rescaled.append(name)
            elif name in seen:
                self._pairs[name] = seen[name]
            elif name not in outputs:
                self.unmatched.append(name)

    def run(self, feed: Mapping[str, np.ndarray], sample: int) -> None:
        """Compare all tensors on one sample; the first one tells their sizes."""
        if self._groups is None:
            self._groups = self._open(feed)
        for group in self._groups:
            for pair, expected, got in group.run(feed):
                name = self._names[pair]
                got = _without_added(expected, got)
                shown = _without_masks(expected, got) if name in self._before_softmax else expected
                self._meters[name].update(shown, got, sample)

    def _open(self, feed: Mapping[str, np.ndarray]) -> list[PairedTensors]:
        first, second = self._models
        self._names = {(self._expected.get(name, name), shown): name for name, shown in self._pairs.items()}
        sizes = tensor_bytes(first, [expected for expected, _ in self._names], feed, **self._options)
        return list(paired_tensors(first, second, list(self._names), sizes, optimize=self._optimize, **self._options))

    def result(self) -> tuple[TensorErrors, ...]:
        """Errors of all tensors that were computed, in graph order, with the dB lost at each."""
        found = {name: meter.result() for name, meter in self._meters.items()}
        found = {name: errors for name, errors in found.items() if errors.elements}
        living = _Living(self._models[1])
        masks, result = self._moved_masks(found), []
        levels = {name: errors.sqnr for name, errors in found.items() if name not in masks}
        for name, errors in found.items():
            node = self._producers[name].producer()
            group = self._functions.get(name, (name,))
            drop = math.nan
            if node is not None and name in levels and name == group[-1]:
                made_by = [self._producers[inner].producer() for inner in group if inner in self._producers]
                before = [levels[n] for n in self._before([node for node in made_by if node is not None], levels)]
                drop = min([_USUAL, *before]) - errors.sqnr
            quantized = self._pairs[name] != name or name in self._quantized
            maker = living.layer(node) if node is not None else None
            by, op = (maker.name or "", maker.op_type) if maker is not None else ("", "Input")
            result.append(TensorErrors(name, by, op, quantized, errors, drop))
        return tuple(result)

    def _moved_masks(self, found: Mapping[str, Errors]) -> set[str]:
        """Tensors that hold infinite values in the quantized model only, which no node there has made of numbers.

        They are masks of the float model, too, that a node picks in another place: what is lost is lost in what it
        picks by. That no number is left there says nothing of the node.
        """
        moved: set[str] = set()
        for name, errors in found.items():
            node = self._producers[name].producer()
            if node is None or not errors.broken:
                continue
            read = self._before((node,), found)
            if any(found[n].skipped or n in moved for n in read) or any(map(_holds_masks, node.inputs)):
                moved.add(name)
        return moved

    def _before(self, nodes: Collection[ir.Node], found: Container[str]) -> list[str]:
        """The nearest compared tensors that nodes are computed from, of what others make."""
        made = {value for node in nodes for value in node.outputs}
        stack = [v for node in nodes for v in node.inputs if v is not None and v not in made]
        visited: set[ir.Value] = set()
        result = []
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


class _Living:
    """What of the float model is still there in the quantized one."""

    def __init__(self, model: ir.Model) -> None:
        self._tensors = {value.name for node in all_nodes(model) for value in node.outputs}
        self._nodes = {(node.name, node.op_type.removeprefix("QLinear")) for node in all_nodes(model)}

    def layer(self, node: ir.Node) -> ir.Node:
        """The layer that a BatchNormalization, or arithmetic with constants, was folded into; else the node itself.

        It leaves the layer its output: what is lost there, the layer's weights have lost.
        """
        found = node
        while (found.name, found.op_type) not in self._nodes and found.op_type in _FOLDED:
            data = [value for value in found.inputs if value is not None and not is_constant(value)]
            before = data[0].producer() if len(data) == 1 and data[0].name not in self._tensors else None
            if before is None:
                return node
            found = before
        return found if (found.name, found.op_type) in self._nodes else node


def _without_added(expected: np.ndarray, got: np.ndarray) -> np.ndarray:
    """What a quantized model gives, without the channels that a target adds behind."""
    (batch, channels, *sizes), (other, more, *others) = ([*a.shape, 0, 0] for a in (expected, got))
    added = more > channels and (batch, sizes) == (other, others)
    return got[:, :channels] if added else got


def _functions(model: ir.Model) -> list[tuple[str, ...]]:
    """The tensors of each function that is written as a chain, a normalization, say, what it gives the last one.

    They are judged as one: a mean that is next to nothing beside what it is subtracted from is all noise, and loses
    nothing.
    """
    plain = model.clone()
    lift_constants(plain)
    eliminate_identity(plain)
    found = []
    for group in find_groups(plain):
        made = [value.name or "" for node in group.nodes for value in node.outputs if value not in group.outputs]
        found.append((*made, group.outputs[0].name or ""))
    return found


def _without_masks(expected: np.ndarray, got: np.ndarray) -> np.ndarray:
    """What a Softmax reads, with infinity, which is not compared, where both models have masked.

    How far below the scores a mask lies does not matter: grids hold none that is far away.
    """
    if expected.shape != got.shape or expected.dtype != np.float32:
        return expected
    seen = TensorStatistics("")
    seen.update(expected, 0)
    low = lowest_number(seen)
    return np.where((expected < low) & (got < low), np.float32(-np.inf), expected) if low > seen.min else expected


def _holds_masks(value: ir.Value | None) -> bool:
    """Whether a value is a constant with values that are no numbers, or so far away that they only mask."""
    array = constant_array(value) if value is not None else None
    return array is not None and array.dtype == np.float32 and not bool(np.all(np.abs(array) <= SENTINEL))


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
        result[value.name] = as_read(value).name or ""
    return result
