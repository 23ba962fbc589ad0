"""What a change of one weight does to the outputs, for one weight after another, segment by segment.

A change runs from the segment that holds the weight on, beside the float model: what it leaves as it was is not run
again, and at any time the weights of one segment are in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.graph.unmapped import read
from onnxq.measuring.decibels import noise_of
from onnxq.measuring.metrics import ErrorMeter
from onnxq.options import Options
from onnxq.ort.session import Session
from onnxq.process.memory import give_back
from onnxq.weight_only.activations import Activations
from onnxq.weight_only.find import Matrix
from onnxq.weight_only.segments import Segment, SegmentedModel, fill, model_of

__all__ = ["output_noise"]

Array = NDArray[Any]


def output_noise(
    model: ir.Model,
    matrices: Sequence[Matrix],
    changed: Callable[[Matrix], Array],
    feeds: Sequence[Mapping[str, Array]],
    options: Options,
    *,
    advance: Callable[[int], None] = lambda done: None,
) -> list[float | None]:
    """Noise over signal, in power, at the outputs: of each matrix when it alone is changed.

    It is the mean over the outputs, and that over the caches which the next run reads is added: many caches count as
    one output does.

    Args:
        model: the float model; not modified.
        matrices: whose readers multiply with them.
        changed: a matrix to the numbers to take in its place, of the shape of its constant.
        feeds: samples.
        options: execution providers and the library of custom operators.
        advance: told how many matrices were begun with.

    Returns:
        None for a matrix that is read inside of a branch or body alone, which is not run by itself.
    """
    parts = SegmentedModel(model, options=options, prepack=False).segments
    outputs = [value for value in model.graph.outputs if value.producer() is not None]
    changes = _Changes(model, matrices, changed, len(feeds), options)
    try:
        fill(changes.kept, model, feeds)
        for segment in parts:
            if segment.writes:
                changes.run(segment)
                advance(len(changes.begun))
            for value in segment.ends:
                if value not in outputs:
                    changes.kept.drop(value.name or "", changes.place(len(matrices), 0))
        return [changes.noise(outputs, v) if v in changes.begun else None for v in range(len(matrices))]
    finally:
        changes.kept.close()


def _is_cache(output: ir.Value) -> bool:
    """Whether an operator gives an output beside its first, as attention does, or appends to an input of the model."""
    node = output.producer()
    assert node is not None
    return bool(output.index()) or (
        node.op_type == "Concat" and any(value is not None and value.is_graph_input() for value in node.inputs)
    )


@dataclass(eq=False)
class _Changes:
    """The model run as it is and with each change, which is a matrix's position.

    Attributes:
        model: the float model.
        matrices: see :func:`output_noise`.
        changed: see :func:`output_noise`.
        samples: their number.
        options: see :func:`output_noise`.
        kept: the samples' tensors, and behind them those of each change where they differ.
        begun: changes so far.
    """

    model: ir.Model
    matrices: Sequence[Matrix]
    changed: Callable[[Matrix], Array]
    samples: int
    options: Options
    kept: Activations = field(default_factory=Activations)
    begun: set[int] = field(default_factory=set)

    def place(self, v: int, sample: int) -> int:
        """Where tensors of a change are kept."""
        return self.samples * (1 + v) + sample

    def tensor(self, name: str, v: int, sample: int) -> Array:
        """A tensor with a change."""
        own = self.place(v, sample)
        return self.kept.get(name, own if self.kept.has(name, own) else sample)

    def run(self, segment: Segment) -> None:
        """Run a segment as it is, then with each change that begins or arrives there."""
        kept, samples = self.kept, self.samples
        names = [value.name or "" for value in segment.reads]
        first = {name: kept.get(name, 0) for name in names}
        made = model_of(self.model, segment, first, {name: kept.common_shape(name, samples) for name in names})
        fed = _fed(made, segment, self.matrices)
        session = Session(made, prepack=False, **self.options.session)
        for value in made.graph.initializers.values():
            value.const_value = None  # the session has them
        weights = {name: _array(self.matrices[v]) for v, name in fed.items()}
        for sample in range(samples):
            for name, array in session.run({**{n: kept.get(n, sample) for n in names}, **weights}).items():
                kept.put(name, sample, array)
        self.begun.update(fed)
        for v in sorted(self.begun):
            there = weights if v not in fed else {**weights, fed[v]: self._changed(v)}
            for sample in range(samples):
                own = self.place(v, sample)
                if v not in fed and not any(kept.has(name, own) for name in names):
                    continue
                data = {n: self.tensor(n, v, sample) for n in names}
                for name, array in session.run({**data, **there}).items():
                    if not np.array_equal(array, kept.get(name, sample)):
                        kept.put(name, own, array)
        del session, made
        give_back()

    def _changed(self, v: int) -> Array:
        return np.ascontiguousarray(self.changed(self.matrices[v]), np.float32)

    def noise(self, outputs: Sequence[ir.Value], v: int) -> float:
        """Noise over signal at the outputs, see :func:`output_noise`."""
        found: dict[bool, list[float]] = {}
        for output in outputs:
            name = output.name or ""
            meter = ErrorMeter()
            for sample in range(self.samples):
                meter.update(self.kept.get(name, sample), self.tensor(name, v, sample), sample)
            errors = meter.result()
            noise = 1 - errors.agreement if math.isnan(errors.score) else noise_of(errors.score)
            found.setdefault(_is_cache(output), []).append(noise)
        return math.fsum(math.fsum(noises) / len(noises) for noises in found.values())


def _fed(made: ir.Model, segment: Segment, matrices: Sequence[Matrix]) -> dict[int, str]:
    """Let the readers of matrices in a segment's model read inputs in their place; matrix → input."""
    readers = {node: v for v, matrix in enumerate(matrices) for node in matrix.nodes}
    found: dict[int, ir.Value] = {}
    for node, twin in zip(segment.nodes, made.graph, strict=True):
        if (v := readers.get(node)) is None:
            continue
        if v not in found:
            shape = ir.Shape(_array(matrices[v]).shape)
            found[v] = ir.Value(name=f"onnxq.weight.{v}", shape=shape, type=ir.TensorType(ir.DataType.FLOAT))
            made.graph.inputs.append(found[v])
        twin.replace_input_with(node.inputs.index(matrices[v].value), found[v])
    for name, value in list(made.graph.initializers.items()):
        if not value.uses():
            del made.graph.initializers[name]
    return {v: value.name or "" for v, value in found.items()}


def _array(matrix: Matrix) -> Array:
    assert matrix.value.const_value is not None
    return np.ascontiguousarray(read(matrix.value.const_value))
