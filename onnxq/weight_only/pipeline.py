"""The pipeline of weight-only quantization, from top to bottom: load, find, quantize layer by layer, check, write."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxq.calibration.chance import one_of_each_pair
from onnxq.calibration.data import open_data
from onnxq.calibration.roles import spread
from onnxq.console.progress import Reporter, Silent
from onnxq.errors import OptionError
from onnxq.graph.passes.halves import store_in_half
from onnxq.graph.shapes import forget_shapes
from onnxq.graph.traverse import all_nodes
from onnxq.memory import give_back
from onnxq.notes.aloud import say
from onnxq.notes.cautions import poor, slow, vague
from onnxq.options import ImageOptions, Options
from onnxq.options.override import GivenOverrides
from onnxq.ort.session import inputs_of
from onnxq.plan import Kept
from onnxq.prepare import Prepared, lowered
from onnxq.rewritten import Rewritten, nothing_done
from onnxq.spec import NEWEST_OPSET
from onnxq.weight_only.activations import Activations
from onnxq.weight_only.examine import Reference, examine
from onnxq.weight_only.experts import complete
from onnxq.weight_only.files import Output
from onnxq.weight_only.find import Matrix, find
from onnxq.weight_only.learn import Learner
from onnxq.weight_only.mix import Mixture, mix, require_folder, write_choice
from onnxq.weight_only.recipe import FASTEST, Recipe
from onnxq.weight_only.remarks import remarks, title, why_slow
from onnxq.weight_only.render import Parts, rewrite, tensors_of
from onnxq.weight_only.segments import Segment, SegmentedModel, within
from onnxq.weight_only.tied import for_product, tie

__all__ = ["quantize_weights", "rewrite_weights"]

_SAMPLES = 32
"""Samples used at most, where no other number is asked for."""
_PROBES = 4
"""Samples that the noise of each weight is measured with."""
_OPSET = {"qdq": 21, "matmulnbits": 17}


def quantize_weights(
    model_path: str | os.PathLike[str],
    output_path: str | os.PathLike[str],
    *,
    bits: int = 4,
    block: int = 32,
    symmetric: bool = True,
    method: str = "rtn",
    data: Any = None,
    format: str = "qdq",
    accuracy_level: int = FASTEST,
    avg_bits: float = 0.0,
    save: str | os.PathLike[str] = "",
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    override: GivenOverrides = (),
    samples: int | None = None,
    image: ImageOptions | None = None,
    reporter: Reporter | None = None,
) -> Rewritten:
    """Store the weights of MatMul, Gemm and Gather as integers in blocks; all else stays float.

    Memory does not grow with the model: tensors in data files are read one at a time, results are written as they are
    made, and data runs through the model in segments.

    Args:
        model_path: the float model; its files are only read.
        output_path: the ``.onnx`` file to write; tensors go to ``<name>.data`` beside it where the model has a data
            file too. Nothing half-written is left.
        bits: 4 or 8, or with ``"matmulnbits"`` 2; tables that rows are picked from take 8, and what chooses experts.
        block: 16, 32, 64, 128 or 256 weights along the input axis share a scale.
        symmetric: signed integers around 0, else with zero points.
        method: ``"rtn"``, ``"gptq"`` (needs data) or ``"hqq"``.
        data: samples, see :func:`onnxq.calibration.data.open_data`: what gptq learns from, and what the result is
            judged on; half of them each.
        format: ``"qdq"`` or ``"matmulnbits"``.
        accuracy_level: of MatMulNBits, see :class:`onnxq.weight_only.recipe.Recipe`.
        avg_bits: bits on average of the weights that are multiplied with, see
            :class:`onnxq.weight_only.recipe.Recipe`; which take how many is found on the data, see
            :mod:`onnxq.weight_only.mix`.
        save: configuration file (.toml) to write that choice to; empty: none.
        include: patterns of nodes, tensors or op types; if any, only these are quantized.
        exclude: patterns of what stays float.
        override: patterns with the bits of other weights: ``"lm_head=weight_bits=8"``, or a mapping.
        samples: at most so many of the data; 32 by default.
        image: how pictures are read.
        reporter: shows progress.

    Returns:
        What was done, what stays float and why, and what running the result showed.

    Raises:
        OnnxqError: anything that goes wrong, see :mod:`onnxq.errors`; nothing is written then.
    """
    recipe = Recipe(bits, block, symmetric, method, format, accuracy_level, avg_bits)
    options = Options(include=tuple(include), exclude=tuple(exclude), override=override, samples=samples)
    return rewrite_weights(
        model_path, data, recipe, output=output_path, options=options, image=image, reporter=reporter, save=save
    )


def rewrite_weights(
    source: Any,
    data: Any,
    recipe: Recipe,
    *,
    output: str | os.PathLike[str],
    options: Options,
    image: ImageOptions | None = None,
    reporter: Reporter | None = None,
    save: str | os.PathLike[str] = "",
) -> Rewritten:
    """As :func:`quantize_weights`, with options as objects.

    Args:
        source: path, ``ModelProto`` or ``ir.Model``.
        data: samples, or None.
        recipe: how.
        output: the file to write.
        options: ``include``, ``exclude``, ``override``, ``samples``, ``opset``, ``simplify``, ``providers`` and
            ``custom_op_library`` count.
        image: how pictures are read.
        reporter: shows progress.
        save: configuration file to write the bits chosen under a budget to; empty: none.
    """
    reporter = reporter or Silent()
    require_folder(save, recipe)
    if recipe.method == "gptq" and data is None:
        raise OptionError("gptq learns from data, and none was given", hint="Give data, or take method=hqq or rtn")
    prepared = Prepared(source, options, streamed=True)
    model = prepared.at_opset(_OPSET[recipe.format], options.opset)
    if recipe.format == "qdq":
        prepared.notes += _with_blocks(model, options)
    matrices, kept = find(model, options, recipe)
    matrices = tie(matrices, recipe)
    own = [matrix for matrix in matrices if not matrix.tied]
    path = Path(source) if isinstance(source, (str, os.PathLike)) else None
    with Output(output, model, path) as files:
        job = _Job(model, recipe, files, Learner(recipe), kept, reporter, options)
        reference = job.without_data(own) if data is None else job.with_data(own, data, image)
        job.share([matrix for matrix in matrices if matrix.tied])
        job.made = complete(job.made)
        result = model.clone()
        made_there = [(_same(matrix, result), parts) for matrix, parts in job.made]
        rewrite(result, made_there, recipe, in_file=not files.external)
        store_in_half(result, among=model.graph.initializers)
        forget_shapes(result)
        written = files.write(result)
        verification = examine(written, model, reference, options, float_bytes=prepared.bytes)
        made = files.finish()
    reference.close()
    quantized = {node.name or "": node.op_type for matrix, _ in job.made for node in matrix.nodes}
    told = (
        *prepared.warnings,
        *([] if quantized else [nothing_done(job.kept, "no MatMul, Gemm or Gather reads a constant weight")]),
        *verification.warnings,
        *slow(verification, why_slow(recipe, quantized)),
        *vague(verification, job.there),
        *poor(verification, options),
    )
    verification = replace(verification, warnings=told)
    say(verification)
    said = remarks([m for m, _ in job.made], recipe, in_file=not files.external, halves=prepared.halves)
    notes, details = [*job.learner.notes(), *said], list(prepared.notes)
    if job.mixture is not None:
        notes, details = [job.mixture.note(), *notes], [*details, *job.mixture.details()]
        if save:
            write_choice(Path(save), job.mixture, model, recipe, options)
    return Rewritten(title(recipe), made, quantized, job.kept, notes, details, verification)


def _with_blocks(model: ir.Model, options: Options) -> list[str]:
    """Bring a model to an opset whose DequantizeLinear has blocks and runs, in place, where it is newer; what was done.

    Raises:
        OptionError: it is older, or has operators that only a newer one has.
    """
    opset = model.opset_imports.get("", 0)
    if opset < _OPSET["qdq"]:
        raise OptionError(
            f"opset {opset} has no DequantizeLinear with blocks, and it could not be raised",
            hint="Use format=matmulnbits",
        )
    return lowered(model, "onnxruntime", NEWEST_OPSET, options)


@dataclass(eq=False)
class _Job:
    """The work on one model: what was made so far, and how many samples there are, where that is known."""

    model: ir.Model
    recipe: Recipe
    files: Output
    learner: Learner
    kept: list[Kept]
    reporter: Reporter
    options: Options
    mixture: Mixture | None = None
    made: list[tuple[Matrix, Parts]] = field(default_factory=list)
    there: int | None = None

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
        opened = open_data(data, inputs_of(self.model), image=image, samples=self.options.samples or _SAMPLES)
        feeds, self.there = list(opened), opened.total
        self.learner.fitting, held = one_of_each_pair(len(feeds))
        self.learner.held = held or [0]
        matrices = self._mixed(matrices, [feeds[k] for k in spread(self.learner.fitting, _PROBES)])
        learning = self.recipe.method != "rtn"
        run = SegmentedModel(
            self.model,
            {node for matrix in matrices if learning and matrix.multiplied for node in matrix.nodes},
            **self.runtime,
            prepack=False,
        )
        reference = Reference(feeds, Activations(), self.learner.held)
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

    @property
    def runtime(self) -> dict[str, Any]:
        """What onnxruntime is opened with."""
        return {"providers": self.options.providers, "custom_op_library": self.options.custom_op_library}

    def _mixed(self, matrices: Sequence[Matrix], feeds: Sequence[Mapping[str, Any]]) -> Sequence[Matrix]:
        """The matrices with the bits that they get under a budget, where there is one."""
        if not self.recipe.avg_bits:
            return matrices
        with self.reporter.phase("choose bits", total=len(matrices), unit="weights") as advance:
            self.mixture = mix(self.model, matrices, self.recipe, feeds, advance, **self.runtime)
        return self.mixture.matrices

    def _of(self, segment: Segment, left: dict[int, Matrix]) -> Iterator[tuple[Matrix, tuple[str, ...]]]:
        """The matrices that a segment reads first and what it multiplies them with, those of the same data together."""
        order = {node: index for index, node in enumerate(inner for outer in segment.nodes for inner in within(outer))}
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
        parts = tensors_of(coded, self.recipe, matrix)
        self.made.append((matrix, {key: self.files.keep(tensor) for key, tensor in parts.items()}))
        if self.files.external:
            del coded, parts
            give_back()


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
