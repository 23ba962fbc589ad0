"""Float model against quantized model on data: how far every output is, and where in the graph the error arises.

The outputs come from the two models as they are; for the tensors in between both run once more, see
:mod:`onnxq.measuring.inner_tensors`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir

from onnxq.backend_choice import backend_named
from onnxq.calibration.data import open_data
from onnxq.calibration.usable import Usable
from onnxq.checks.data import Looker
from onnxq.checks.randomness import two_draws
from onnxq.console.progress import Reporter, Silent
from onnxq.console.terminal import counts, listed, plural
from onnxq.errors import ExecutionError, ModelError, OnnxqError, OptionError
from onnxq.given.artifact import read_artifact, refuse_table
from onnxq.graph.files.load import ModelSource, load
from onnxq.graph.namer import unique_names
from onnxq.graph.shapes import forget_shapes, infer_shapes
from onnxq.graph.traverse import all_nodes
from onnxq.integer_operators import quantizing
from onnxq.locations import find_artifact
from onnxq.measuring.chosen_rows import chosen_rows, matched
from onnxq.measuring.comparison import Comparison, TensorErrors
from onnxq.measuring.inner_tensors import InnerTensors
from onnxq.measuring.metrics import ErrorMeter
from onnxq.measuring.outputs import no_tensors
from onnxq.options import ImageOptions, Options
from onnxq.ort.session import Session, open_anyhow
from onnxq.prepare import Prepared
from onnxq.quantized import Quantized

__all__ = ["Comparison", "TensorErrors", "compare"]

_SHOWN = 3
"""Tensors that a warning names."""
_BOTH = "Give the float model and the model that was made from it."
_OTHER_PRECISION = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE)


def compare(
    reference: ModelSource | Quantized,
    quantized: ModelSource | Quantized,
    data: Any,
    *,
    backend: str | None = None,
    tensors: bool = True,
    samples: int | None = None,
    image: ImageOptions | None = None,
    providers: Sequence[str] = (),
    custom_op_library: str | None = None,
    reporter: Reporter | None = None,
) -> Comparison:
    """Run both models over the same data, one sample at a time.

    The quantized model runs with graph optimizations, unless it was made for another runtime than onnxruntime, or is
    a file that onnxruntime only loads without.

    Args:
        reference: the float model: path, ``ModelProto`` or ``ir.Model``.
        quantized: the other model, or a `Quantized`; with ``backend`` its file, or the folder it was written to.
        backend: the target that a file was made for, which is read back as `verify` does: where its numbers lie in a
            table beside a float model, the simulation of both is compared. None takes the model as it is.
        data: see `onnxq.calibration.data.open_data`.
        tensors: compare the tensors in between, too.
        samples: at most so many samples.
        image: how pictures are read.
        providers: execution providers of onnxruntime; empty means the CPU.
        custom_op_library: shared library with the models' custom operators.
        reporter: shows progress.

    Raises:
        ModelError: a model is invalid, or the two do not have the same inputs and outputs.
        BackendError: the file is not an artifact of the target; or none is named, the model has no quantizers, and a
            table lies beside it that some target would read.
        OptionError: a target is named for a model in memory, or another than a `Quantized` was made for.
        DataError: the data does not fit, or no sample of it can be used: each holds NaN or infinity, and the float
            model makes no number of it.
        ExecutionError: onnxruntime cannot load or run a model.
    """
    options: dict[str, Any] = {"providers": providers, "custom_op_library": custom_op_library}
    first = reference.rendered() if isinstance(reference, Quantized) else load(reference)
    second, home = _second(quantized, backend)
    for model in (first, second):
        forget_shapes(model)  # a builder's may be wrong, and whoever quantizes does not rely on them either
    _same_interface(first, second)
    warnings = _swapped(first, second)
    (first, base), other = _base(first, options, custom_op_library), open_anyhow(second, optimize=home, **options)
    feeds = open_data(data, [*base.inputs, *base.defaults], image=image, samples=samples)
    meters = {info.name: ErrorMeter() for info in base.outputs}
    rows = {**chosen_rows(first), **chosen_rows(second)}
    inner = InnerTensors(_alike(first, second, custom_op_library), second, options, optimize=home) if tensors else None
    looker, usable, count = Looker.of(first), Usable(), 0
    with (reporter or Silent()).phase("compare", total=feeds.length) as advance:
        for count, feed in enumerate(feeds, 1):
            expected, got = base.run(feed), other.run(feed)
            usable.look(feed, expected, feeds.index_of(count - 1))
            for name, meter in meters.items():
                found = matched(expected[name], got[name], rows.get(name))
                meter.update(expected[name], found, feeds.index_of(count - 1))
            del expected, got
            looker.look(feed, feeds.index_of(count - 1))
            if inner is not None:
                inner.run(feed, feeds.index_of(count - 1))
            advance(count)
    if usable.error is not None:
        raise usable.error
    outputs = {name: meter.result() for name, meter in meters.items()}
    own = (str(value.name) for value in first.graph.outputs)
    doubts = (*two_draws(first), *looker.warnings())
    warnings += (*doubts, *no_tensors(own, outputs, "the float model"))
    if inner is None:
        return Comparison(count, outputs, warnings=warnings, backend=backend)
    between = inner.result()
    warnings += _left_out(inner.rescaled)
    warnings += _picked(inner.picked_from, between)
    return Comparison(count, outputs, between, tuple(inner.unmatched), warnings, backend)


def _second(quantized: ModelSource | Quantized, backend: str | None) -> tuple[ir.Model, bool]:
    """What the other model computes, and whether onnxruntime is what it was made for, as far as is known."""
    if isinstance(quantized, Quantized):
        target = quantized.backend
        if backend not in (None, target.name):
            raise OptionError(
                f"the result was made for {target.name}", where=f"backend {backend!r}", hint="Leave it out"
            )
        return quantized.rendered(), target.at_home
    path = os.fspath(quantized) if isinstance(quantized, (str, os.PathLike)) else None
    if backend is None:
        model = load(quantized)
        if path is not None:
            refuse_table(Path(path), model)
        return model, True
    target = backend_named(backend)
    if path is None:
        hint = "Give the path of the .onnx file that was written, or leave the target out"
        raise OptionError("nothing lies beside a model in memory", where=f"backend {backend!r}", hint=hint)
    file = find_artifact(path, target.name, beside=target.beside)
    form, read = read_artifact(file, target)
    model = load(file) if form == "onnx" else read.rendered()
    return model, target.at_home


def _base(model: ir.Model, options: Mapping[str, Any], library: str | None) -> tuple[ir.Model, Session]:
    """A float model with its session: as it is, or prepared as for quantizing where onnxruntime only takes that."""
    try:
        return model, Session(model, **options)
    except ExecutionError as error:  # an old opset, half precision, shapes that are not quite right
        try:
            prepared = Prepared(model, Options(custom_op_library=library)).model
        except OnnxqError:
            raise error from None
        return prepared, Session(prepared, **options)


def _alike(first: ir.Model, second: ir.Model, library: str | None) -> ir.Model:
    """The float model with the tensors that the other was made with: as it is, or prepared as for quantizing.

    What was between Transposes that undo each other has other names then, its axes being in another order. A model in
    half precision shows no tensors before.
    """
    for model in (first, second):
        unique_names(model)
        infer_shapes(model)
    made = _tensors(second)
    shared = made & _tensors(first)
    if shared == made:
        return first
    try:
        prepared = Prepared(first, Options(custom_op_library=library)).model
    except OnnxqError:
        return first
    return prepared if len(made & _tensors(prepared)) > len(shared) else first


def _tensors(model: ir.Model) -> set[str]:
    """Names of what nodes compute, but for numbers in other precision than float32."""
    values = (value for node in all_nodes(model) for value in node.outputs)
    return {value.name for value in values if value.name and value.dtype not in _OTHER_PRECISION}


def _swapped(first: ir.Model, second: ir.Model) -> tuple[str, ...]:
    """What to say of a reference that is quantized, where the other model is not."""
    carried = quantizing(first)
    if not carried or quantizing(second):
        return ()
    return (
        f"the two look swapped: the first model has {counts(carried)}, the second none. The float model comes first",
    )


def _left_out(rescaled: Sequence[str]) -> tuple[str, ...]:
    """What to say of tensors that an algorithm has scaled or turned."""
    if not rescaled:
        return ()
    shown = listed(list(map(repr, rescaled)), _SHOWN)
    them = "it" if len(rescaled) == 1 else "them"
    return (
        f"{plural(len(rescaled), 'tensor')} in between not compared, since an algorithm rescaled or turned {them} "
        f"(equalize, rotate or smoothquant, say): {shown}",
    )


def _picked(tensors: Sequence[str], between: Sequence[TensorErrors]) -> tuple[str, ...]:
    """What to say of a detector's outputs."""
    found = [f"{t.tensor!r} has {t.errors.sqnr:.1f} dB" for t in between if t.tensor in tensors]
    if not found:
        return ()
    return (
        "outputs are picked among many, and rounding changes which and in what order: their figures say little, nor "
        f"is compared how they were made. Of what is picked from, {listed(found, _SHOWN)}",
    )


def _same_interface(first: ir.Model, second: ir.Model) -> None:
    for what in ("inputs", "outputs"):
        names = [
            [str(v.name) for v in getattr(m.graph, what) if not (what == "inputs" and v.const_value is not None)]
            for m in (first, second)
        ]
        if set(names[0]) != set(names[1]):
            both = " and ".join(", ".join(map(repr, sorted(n))) or "none" for n in names)
            raise ModelError(f"the models have different {what}: {both}", hint=_BOTH)
    others = {value.name: value for value in second.graph.inputs}
    for value in first.graph.inputs:
        shapes = [each.shape for each in (value, others.get(value.name)) if each is not None and each.shape is not None]
        if len(shapes) == len(("first", "second")) and _differ(*shapes):
            both = " and ".join(
                "x".join(str(dim if isinstance(dim, int) else dim.value or "?") for dim in shape) or "a number"
                for shape in shapes
            )
            raise ModelError(f"the models have different inputs: {value.name!r} is {both}", hint=_BOTH)


def _differ(first: ir.Shape, second: ir.Shape) -> bool:
    """Whether no array has both shapes: other numbers of axes, or other sizes of one that is fixed in both."""
    fixed = ([dim if isinstance(dim, int) else None for dim in shape] for shape in (first, second))
    return len(first) != len(second) or any(None not in pair and len({*pair}) > 1 for pair in zip(*fixed, strict=True))
