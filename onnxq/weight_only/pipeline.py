"""The pipeline of weight-only quantization, from top to bottom: load, find, quantize layer by layer, check, write."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import onnx_ir as ir

from onnxq.console.progress import Reporter, Silent
from onnxq.errors import OptionError
from onnxq.notes.cautions import slow
from onnxq.options import ImageOptions, Options
from onnxq.options.override import GivenOverrides
from onnxq.plan import Kept
from onnxq.prepare import Prepared, lowered
from onnxq.rewritten import Rewritten, nothing_done, told
from onnxq.spec import NEWEST_OPSET
from onnxq.weight_only.examine import examine
from onnxq.weight_only.experts import complete
from onnxq.weight_only.files import Output
from onnxq.weight_only.find import Matrix, find
from onnxq.weight_only.job import Job
from onnxq.weight_only.learn import Learner
from onnxq.weight_only.mix import require_folder, write_choice
from onnxq.weight_only.recipe import FASTEST, Recipe
from onnxq.weight_only.remarks import more_accurate, more_bits, remarks, title, why_slow
from onnxq.weight_only.render import rewrite as render
from onnxq.weight_only.rotate import rotate as turn
from onnxq.weight_only.tied import tie

__all__ = ["quantize_weights", "rewrite_weights"]


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
    rotate: bool = False,
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
        bits: 4, 8 or 2; tables that rows are picked from take 8, and what chooses experts; some products take 4 in
            place of 2, see :class:`onnxq.weight_only.recipe.Recipe`.
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
        rotate: turn the channels between layers first, see :mod:`onnxq.weight_only.rotate`; up to 2 GB of weights.
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
    recipe = Recipe(bits, block, symmetric, method, format, accuracy_level, avg_bits, rotate)
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
        options: ``include``, ``exclude``, ``override``, ``samples``, ``opset``, ``shapes``, ``simplify``, ``seed``,
            ``providers`` and ``custom_op_library`` count.
        image: how pictures are read.
        reporter: shows progress.
        save: configuration file to write the bits chosen under a budget to; empty: none.
    """
    reporter = reporter or Silent()
    require_folder(save, recipe)
    if recipe.method == "gptq" and data is None:
        raise OptionError("gptq learns from data, and none was given", hint="Give data, or take method=hqq or rtn")
    prepared = Prepared(source, options, streamed=True)
    model, matrices, kept = _found(prepared, options, recipe)
    turned = [turn(model, matrices, options.seed)] if recipe.rotate else []
    matrices = tie(matrices, recipe)
    own = [matrix for matrix in matrices if not matrix.tied]
    with Output(output, model, source) as files:
        job = Job(model, recipe, files, Learner(recipe), kept, reporter, options)
        reference = job.without_data(own) if data is None else job.with_data(own, data, image)
        job.share([matrix for matrix in matrices if matrix.tied])
        job.made = complete(job.made)
        written = files.write(job.result(partial(render, recipe=recipe, in_file=not files.external)))
        verification = examine(written, model, reference, options, float_bytes=prepared.bytes)
        made = files.finish()
    reference.close()
    quantized = job.quantized()
    nothing = [] if quantized else [nothing_done(job.kept, "no MatMul, Gemm or Gather reads a constant weight")]
    late = slow(verification, why_slow(recipe, quantized))
    verification = told(verification, options, [*prepared.warnings, *nothing], slow=late, there=job.there)
    said = remarks([m for m, _ in job.made], recipe, in_file=not files.external, halves=prepared.halves)
    more = more_accurate(verification, recipe) if data is not None else []
    notes, details = [*turned, *job.learner.notes(), *said, *more], list(prepared.notes)
    if job.mixture is not None:
        chosen = [job.mixture.note()] if any(matrix.chosen for matrix in job.mixture.matrices) else []
        notes, details = [*chosen, *notes], [*details, *job.mixture.details()]
        if save:
            write_choice(Path(save), job.mixture, model, recipe, options)
    wider = more_bits([matrix for matrix, _ in job.made], recipe)
    everywhere = "--algorithm weight_only:bits=8" if wider else ""
    return Rewritten(
        title(recipe), made, quantized, job.kept, notes, details, verification, wider=wider, all_wider=everywhere
    )


def _found(prepared: Prepared, options: Options, recipe: Recipe) -> tuple[ir.Model, list[Matrix], list[Kept]]:
    """The model at the opset that its matrices need, these, and the nodes whose weights stay float.

    Raises:
        OptionError: an opset is asked for that has not what is needed, or as :func:`find` says.
    """
    least = recipe.opset()
    model, notes = prepared.raised(prepared.model, least, options.opset)
    matrices, kept = find(model, options, recipe)
    needed = recipe.opset(matrix.fewest_bits(recipe) for matrix in matrices)
    if needed > least:
        least = needed
        model, notes = prepared.raised(prepared.model, least, options.opset)
        matrices, kept = find(model, options, recipe)
    prepared.notes += [*notes, *(_with_blocks(model, least, options) if recipe.format == "qdq" else [])]
    return model, matrices, kept


def _with_blocks(model: ir.Model, least: int, options: Options) -> list[str]:
    """Bring a model to an opset whose DequantizeLinear has blocks and runs, in place, where it is newer; what was done.

    Args:
        model: changed in place.
        least: the first opset that has what is needed.
        options: the opset asked for.

    Raises:
        OptionError: it is older, or has operators that only a newer one has.
    """
    opset = model.opset_imports.get("", 0)
    if opset < least:
        lacking = "DequantizeLinear with blocks" if opset < Recipe().opset() else "integers of 2 bits"
        if options.opset is not None and options.opset < least:
            raise OptionError(
                f"{options.opset} has no {lacking}: at least {least} is needed",
                where="opset",
                hint="Leave --opset out, or write weight_only:format=matmulnbits",
            )
        raise OptionError(
            f"opset {opset} has no {lacking}, and it could not be raised",
            hint="Use format=matmulnbits",
        )
    return lowered(model, "onnxruntime", NEWEST_OPSET, options)
