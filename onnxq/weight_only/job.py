"""The work on one model: its matrices one after the other, from their numbers alone or while data runs through it."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxq.calibration.chance import one_of_each_pair
from onnxq.calibration.data import open_data
from onnxq.calibration.roles import spread
from onnxq.console.progress import Reporter
from onnxq.graph.passes.halves import store_in_half
from onnxq.graph.shapes import forget_shapes
from onnxq.graph.traverse import all_nodes, with_bodies
from onnxq.options import ImageOptions, Options
from onnxq.ort.inputs import inputs_of
from onnxq.plan import Kept
from onnxq.process.memory import trim
from onnxq.weight_only.activations import Activations
from onnxq.weight_only.examine import Reference
from onnxq.weight_only.files import Output
from onnxq.weight_only.find import Matrix
from onnxq.weight_only.grid import Coded
from onnxq.weight_only.learn import Learner
from onnxq.weight_only.mix import Mixture, mix
from onnxq.weight_only.recipe import Recipe
from onnxq.weight_only.render import Parts, tensors_of
from onnxq.weight_only.segments import Segment, SegmentedModel
from onnxq.weight_only.tied import for_product

__all__ = ["Job"]

_SAMPLES = 32
"""Samples used at most, where no other number is asked for."""
_PROBES = 4
"""Samples that the noise of each weight is measured with."""


@dataclass(eq=False)
class Job:
    """The work on one model.

    Attributes:
        model: the float model; not modified.
        recipe: how weights are stored.
        files: where what is made goes.
        learner: makes the integers.
        kept: what stays float; weights that hold no numbers are added.
        reporter: shows progress.
        options: ``samples``, ``providers`` and ``custom_op_library`` count.
        mixture: the bits that were chosen, where there is a budget.
        tensors: what stands for a matrix.
        made: matrices, and what stands for them.
        largest: largest magnitude of what is multiplied with each, in the samples that are learned from, where the
            recipe looks at data and that is a number above 0.
        there: how many samples the data has, where that is known.
    """

    model: ir.Model
    recipe: Recipe
    files: Output
    learner: Learner
    kept: list[Kept]
    reporter: Reporter
    options: Options
    mixture: Mixture | None = None
    tensors: Callable[[Coded, Recipe, Matrix], dict[str, ir.TensorProtocol]] = tensors_of
    made: list[tuple[Matrix, Parts]] = field(default_factory=list)
    largest: dict[Matrix, float] = field(default_factory=dict)
    there: int | None = None

    def quantized(self) -> dict[str, str]:
        """Node → operator, of those that read what was made."""
        return {node.name or "": node.op_type for matrix, _ in self.made for node in matrix.nodes}

    def result(self, render: Callable[[ir.Model, Sequence[tuple[Matrix, Parts]]], None]) -> ir.Model:
        """The model with what was made; what was not is stored in half precision where that loses nothing.

        Args:
            render: puts what was made in the place of the matrices of a model.
        """
        result = self.model.clone()
        render(result, [(_same(matrix, result), parts) for matrix, parts in self.made])
        store_in_half(result, among=self.model.graph.initializers)
        forget_shapes(result)
        return result

    def without_data(self, matrices: Sequence[Matrix]) -> Reference:
        """Quantize every matrix from its numbers alone."""
        matrices = self._mixed(matrices, ())
        with self.reporter.phase("quantize", total=len(matrices), unit="weights") as advance:
            for done, matrix in enumerate(matrices, 1):
                self._quantize(matrix)
                advance(done)
        return Reference()

    def with_data(self, matrices: Sequence[Matrix], data: Any, image: ImageOptions | None) -> Reference:
        """Run the float model segment by segment and quantize the matrices of each while its data is there."""
        opened = open_data(
            data, inputs_of(self.model, defaults=True), image=image, samples=self.options.samples or _SAMPLES
        )
        feeds, self.there = list(opened), opened.total
        self.learner.fitting, held = one_of_each_pair(len(feeds))
        self.learner.held = held or [0]
        matrices = self._mixed(matrices, [feeds[k] for k in spread(self.learner.fitting, _PROBES)])
        learning = self.recipe.looks_at_data
        run = SegmentedModel(
            self.model,
            {node for matrix in matrices if learning and matrix.multiplied for node in matrix.nodes},
            options=self.options,
            prepack=False,
        )
        places = [opened.index_of(k) for k in range(len(feeds))]
        reference = Reference(feeds, Activations(), self.learner.held, places)
        left = {id(matrix): matrix for matrix in matrices}
        with self.reporter.phase("quantize", total=len(matrices), unit="weights") as advance:
            for segment, _ in run.run(feeds, reference.outputs):
                there = set(reference.outputs.names()) if learning else set()
                for matrix, names in self._of(segment, left):
                    self._quantize(matrix, reference.outputs, [name for name in names if name in there])
                    advance(len(matrices) - len(left))
                self.learner.forget()
            for matrix in list(left.values()):
                self._quantize(matrix)
            advance(len(matrices))
        return reference

    def share(self, tied: Sequence[Matrix]) -> None:
        """Let matrices have the integers of the tables that they are tied to."""
        tables = {matrix.value.name: parts for matrix, parts in self.made if matrix.gathered}
        for matrix in tied:
            if (parts := tables.get(matrix.tied)) is None:
                self._leave(matrix)
            else:
                self.made.append((matrix, {**parts, "codes": for_product(parts["codes"], matrix, self.recipe)}))

    def _leave(self, matrix: Matrix) -> None:
        reason = "its weight holds NaN or infinite values"
        self.kept += [Kept(node.name or "", node.op_type, reason) for node in matrix.nodes]

    def _mixed(self, matrices: Sequence[Matrix], feeds: Sequence[Mapping[str, Any]]) -> Sequence[Matrix]:
        """The matrices with the bits that they get under a budget, where there is one."""
        if not self.recipe.avg_bits:
            return matrices
        with self.reporter.phase("choose bits", total=len(matrices), unit="weights") as advance:
            self.mixture = mix(self.model, matrices, self.recipe, feeds, self.options, advance)
        return self.mixture.matrices

    def _of(self, segment: Segment, left: dict[int, Matrix]) -> Iterator[tuple[Matrix, tuple[str, ...]]]:
        """The matrices that a segment reads first and what it multiplies them with, those of the same data together."""
        order = {
            node: index for index, node in enumerate(inner for outer in segment.nodes for inner in with_bodies(outer))
        }
        found = {m: _data_of(m, order) for m in left.values() if m.nodes[0] in order}
        places: dict[tuple[str, ...], int] = {}
        for names in found.values():
            places.setdefault(names, len(places))
        for matrix in sorted(found, key=lambda m: (places[found[m]], order[m.nodes[0]])):
            del left[id(matrix)]
            yield matrix, found[matrix]

    def _quantize(self, matrix: Matrix, kept: Activations | None = None, names: Sequence[str] = ()) -> None:
        inputs = matrix.shape[1]

        def rows(sample: int) -> np.ndarray[Any, np.dtype[np.float32]]:
            assert kept is not None
            arrays = (np.asarray(kept.get(name, sample), np.float32) for name in names)
            return np.concatenate([array.reshape(-1, inputs) for array in arrays])

        coded = self.learner.code(matrix, rows if names else None, "\n".join(names))
        if coded is None:
            self._leave(matrix)
            return
        if names:
            largest = max(float(np.abs(rows(k)).max(initial=0)) for k in self.learner.fitting)
            if 0 < largest < math.inf:
                self.largest[matrix] = largest
        parts = self.tensors(coded, self.recipe, matrix)
        self.made.append((matrix, {key: self.files.keep(tensor) for key, tensor in parts.items()}))
        if self.files.external:
            del coded, parts
            trim()


def _data_of(matrix: Matrix, among: Collection[ir.Node]) -> tuple[str, ...]:
    """Names of what some of the readers of a matrix multiply it with, each once."""
    if not matrix.multiplied:
        return ()
    data = (node.inputs[0] for node in matrix.nodes if node in among)
    return tuple(dict.fromkeys(value.name or "" for value in data if value is not None))


def _same(matrix: Matrix, clone: ir.Model) -> Matrix:
    """The matrix as it is in a clone of its model."""
    wanted = {node.name for node in matrix.nodes}
    nodes = [node for node in all_nodes(clone) if node.name in wanted]
    (reader,) = (node for node in matrix.nodes if node.name == nodes[0].name)
    value = nodes[0].inputs[reader.inputs.index(matrix.value)]
    assert value is not None
    return replace(matrix, value=value, nodes=nodes)
