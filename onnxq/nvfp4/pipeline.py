"""The pipeline of NVFP4, from top to bottom: load, find, quantize layer by layer, simulate, write."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import Any

import onnx_ir as ir

from onnxq.backend_choice import backend_named
from onnxq.console.progress import Reporter, Silent
from onnxq.console.terminal import plural
from onnxq.errors import OptionError
from onnxq.nvfp4.find import find_products
from onnxq.nvfp4.recipe import OPSET, Nvfp4
from onnxq.nvfp4.render import rewrite, tensors_of
from onnxq.options import ImageOptions, Options
from onnxq.prepare import Prepared
from onnxq.rewritten import Rewritten, nothing_done, told
from onnxq.weight_only.examine import examine
from onnxq.weight_only.files import Output
from onnxq.weight_only.find import Matrix
from onnxq.weight_only.job import Job
from onnxq.weight_only.learn import Learner
from onnxq.weight_only.render import Parts
from onnxq.weight_only.rotate import rotate as turn

__all__ = ["TARGET", "quantize_nvfp4", "rewrite_nvfp4"]

TARGET = "tensorrt"
_SIMULATED = (
    "the figures are of a simulation in float: onnxruntime has no kernel of 4-bit floating-point numbers. TensorRT has "
    "them on GPUs of compute capability 10.0 or later"
)
_HALVES = (
    "the model came in half precision and computes in float32 now where it does not multiply in FP4, which a GPU does "
    "more slowly; its inputs and outputs are cast"
)
_FLOAT_PRODUCTS = (
    "activations stay float: TensorRT unpacks the weights at every run and multiplies in float. The file is smaller, "
    "and nothing is faster; with nvfp4:activations=true it multiplies in FP4"
)


def quantize_nvfp4(
    model_path: str | os.PathLike[str],
    output_path: str | os.PathLike[str],
    *,
    data: Any = None,
    method: str = "rtn",
    rotate: bool = False,
    activations: bool = True,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    samples: int | None = None,
    image: ImageOptions | None = None,
    reporter: Reporter | None = None,
) -> Rewritten:
    """Let MatMul and Gemm multiply 4-bit floating-point numbers in blocks of 16; all else stays float.

    Memory does not grow with the model, see :func:`onnxq.weight_only.quantize_weights`.

    Args:
        model_path: the float model; its files are only read.
        output_path: the ``.onnx`` file to write, for TensorRT; tensors go to ``<name>.data`` beside it where the model
            has a data file too. Nothing half-written is left.
        data: samples, see :func:`onnxq.calibration.data.open_data`: the largest magnitudes of activations are taken
            from them and gptq learns from them, and the result is judged on them; half of them each.
        method: ``"rtn"`` or ``"gptq"``.
        rotate: turn the channels between layers first, see :mod:`onnxq.weight_only.rotate`; up to 2 GB of weights.
        activations: round what weights are multiplied with as well; else it stays float, and without gptq no data is
            needed.
        include: patterns of nodes, tensors or op types; if any, only these are quantized.
        exclude: patterns of what stays float.
        samples: at most so many of the data; 32 by default.
        image: how pictures are read.
        reporter: shows progress.

    Returns:
        What was done, what stays float and why, and what running a simulation of the result showed.

    Raises:
        OnnxqError: anything that goes wrong, see :mod:`onnxq.errors`; nothing is written then.
    """
    recipe = Nvfp4(method=method, rotate=rotate, activations=activations)
    options = Options(include=tuple(include), exclude=tuple(exclude), samples=samples)
    return rewrite_nvfp4(model_path, data, recipe, output=output_path, options=options, image=image, reporter=reporter)


def rewrite_nvfp4(
    source: Any,
    data: Any,
    recipe: Nvfp4,
    *,
    output: str | os.PathLike[str],
    options: Options,
    image: ImageOptions | None = None,
    reporter: Reporter | None = None,
) -> Rewritten:
    """As :func:`quantize_nvfp4`, with options as objects.

    Args:
        source: path, ``ModelProto`` or ``ir.Model``.
        data: samples, or None.
        recipe: how.
        output: the file to write.
        options: ``include``, ``exclude``, ``samples``, ``opset``, ``shapes``, ``simplify``, ``seed``, ``providers`` and
            ``custom_op_library`` count.
        image: how pictures are read.
        reporter: shows progress.
    """
    reporter = reporter or Silent()
    if recipe.needs_data and data is None:
        learns = "gptq learns" if recipe.method == "gptq" else "the largest magnitudes of activations are taken"
        hint = "Give data, or take nvfp4:activations=false,method=rtn"
        raise OptionError(f"{learns} from data, and none was given", hint=hint)
    prepared = Prepared(source, options, streamed=True)
    model = _fitted(prepared, options)
    matrices, kept = find_products(model, options, recipe)
    turned = [turn(model, matrices, options.seed)] if recipe.rotate else []
    with Output(output, model, source) as files:
        job = Job(model, recipe, files, Learner(recipe), kept, reporter, options, tensors=tensors_of)
        reference = job.without_data(matrices) if data is None else job.with_data(matrices, data, image)
        written = files.write(job.result(partial(_render, job=job, recipe=recipe)))
        verification = examine(written, model, reference, options, float_bytes=prepared.bytes, at_home=False)
        made = files.finish()
    reference.close()
    quantized = job.quantized()
    nothing = [] if quantized else [nothing_done(job.kept, "no MatMul or Gemm reads a constant weight")]
    verification = told(verification, options, [*prepared.warnings, *nothing], there=job.there)
    notes = [*turned, *job.learner.notes(), *_said(recipe, job, halves=prepared.halves)]
    return Rewritten(title(recipe), made, quantized, job.kept, notes, list(prepared.notes), verification)


def title(recipe: Nvfp4) -> str:
    """What was done, in a line."""
    what = "weights and activations" if recipe.activations else "weights"
    return f"NVFP4: {what} in blocks of {recipe.block}, {recipe.method}"


def _fitted(prepared: Prepared, options: Options) -> ir.Model:
    """The model as TensorRT wants it, at an opset with 4-bit floating-point numbers.

    Raises:
        OptionError: an older opset is asked for, or one that TensorRT does not read.
    """
    if options.opset is not None and options.opset < OPSET:
        raise OptionError(
            f"opset {options.opset} has no 4-bit floating-point numbers",
            where="opset",
            hint=f"Leave it out or ask for {OPSET} or more",
        )
    target = backend_named(TARGET)
    fitted = prepared.for_target(target, options)
    model, notes = prepared.raised(fitted.model, OPSET, options.opset)
    prepared.notes += [*fitted.notes, *notes]
    return model


def _render(result: ir.Model, made: Sequence[tuple[Matrix, Parts]], job: Job, recipe: Nvfp4) -> None:
    """Put NVFP4 in a clone of the model, ``made`` being of the clone what the job has made of the model."""
    pairs = zip(job.made, made, strict=True) if recipe.activations else ()
    rewrite(result, made, {twin: job.largest[own] for (own, _), (twin, _) in pairs if own in job.largest})


def _said(recipe: Nvfp4, job: Job, *, halves: bool) -> list[str]:
    """What a reader of the result may wonder at."""
    blind = sum(matrix not in job.largest for matrix, _ in job.made) if recipe.activations else 0
    unseen = f"{plural(blind, 'weight')} multiplied in float, since no data reaches them, or zeros alone"
    return [
        *([_HALVES] if halves else []),
        *([unseen] if blind else []),
        *([_FLOAT_PRODUCTS] if job.made and not recipe.activations else []),
        *([_SIMULATED] if job.made else []),
    ]
