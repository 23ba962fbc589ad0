"""Dynamic quantization as ``--algorithm dynamic``: int8 weights, and ranges of activations taken at each run.

The plan, the numbers and the rendering are those of onnxruntime's own target, with a table in which every weight is
only stored; layers that onnxruntime computes in integers with ranges taken at each run are then rewritten, see
:mod:`onnxq.render.ranges_at_run`. Tables of embeddings and the weights of layers that stay float are stored as integers
as they are by default, but for those of convolutions, which need their biases corrected on data then. For transformers
and LSTMs on a CPU, whose activations vary too much from one input to the next for fixed ranges, or that have no integer
kernel with those.
"""

from __future__ import annotations

import os
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

from onnxq.backend import Backend, Kind
from onnxq.backend_choice import backend_named
from onnxq.calibration.reduced import reduced_numbers
from onnxq.calibration.weights import weight_range
from onnxq.console.progress import Reporter, Silent
from onnxq.dynamic.layers import layers_to_quantize, whole_attention
from onnxq.errors import OutputError
from onnxq.for_processor import reduces
from onnxq.graph.files.save import save
from onnxq.graph.shapes import forget_shapes
from onnxq.graph.traverse import all_constants, all_nodes
from onnxq.graph.values import constant_array
from onnxq.locations import spare
from onnxq.measuring.final_check import first_look
from onnxq.measuring.samples_to_judge import samples_to_judge
from onnxq.notes.cautions import slower_than_float
from onnxq.numbers import unusable_constants
from onnxq.options import ImageOptions, Options
from onnxq.plan import Kept, Plan
from onnxq.planning.placement import elements
from onnxq.planning.planner import settled_plan
from onnxq.prepare import Prepared
from onnxq.qparams import QParams
from onnxq.quantized import Quantized
from onnxq.ranged import from_range
from onnxq.render.ranges_at_run import take_ranges_at_run
from onnxq.rewritten import HOME, Rewritten, nothing_done, refuse_unused, told

__all__ = ["HELP", "NAME", "PARAMETERS", "STAGE", "TITLE", "require", "rewrite", "runs_in_integers"]

NAME = "dynamic"
TITLE = "int8 weights, ranges of activations taken at each run: for transformers and LSTMs on a CPU; needs no data"
STAGE = "model"
PARAMETERS: Mapping[str, object] = {"per_channel": True}
HELP: Mapping[str, str] = {
    "per_channel": "true: weights have a scale for each output channel; false: one scale for each weight tensor",
}

_USED = (
    "include",
    "exclude",
    "samples",
    "opset",
    "shapes",
    "simplify",
    "providers",
    "custom_op_library",
    "reduce_range",
)
_HINTS = {"per_channel": "Write dynamic:per_channel={value}"}
_LEAST_STORED = 1024
"""Elements from which the weight of a layer that stays float is stored as integers."""
_CONVOLUTIONS = ("Conv", "ConvTranspose")
_UNCORRECTED = "rounded weights of a convolution need its bias corrected on data"
_NOTHING = "no node that onnxruntime can quantize at run time reads a constant float32 weight"


def require(options: Options) -> None:
    """Refuse options that have no effect here.

    Raises:
        OptionError: one was given.
    """
    refuse_unused(options, NAME, _USED, _HINTS)


def rewrite(
    model: str | os.PathLike[str],
    data: Any = None,
    *,
    output: str | os.PathLike[str],
    options: Options | None = None,
    image: ImageOptions | None = None,
    reporter: Reporter | None = None,
    per_channel: bool = True,
) -> Rewritten:
    """Quantize a model dynamically.

    Args:
        model: the float model; left unchanged.
        data: samples that the result is judged on, see :func:`onnxq.calibration.data.open_data`; None: it is only
            loaded, not run.
        output: the file to write.
        options: ``include``, ``exclude``, ``samples``, ``opset``, ``shapes``, ``simplify``, ``providers``,
            ``custom_op_library`` and ``reduce_range`` count.
        image: how pictures are read.
        reporter: shows progress.
        per_channel: weights have a scale for each output.

    Returns:
        What was done, what stays float and why, and what running the result showed.

    Raises:
        OptionError: an option has no effect here, or a pattern matches nothing.
        ModelError: the model is unreadable.
        OutputError: the result cannot be written.
        VerificationError: the result cannot be loaded or run, or has other inputs or outputs.
    """
    options, reporter = Options.of(options), reporter or Silent()
    require(options)
    _require_target(output)
    spare(output, model=model, data=data)
    prepared = Prepared(model, options)
    spare(output, model=prepared.model)
    float_model = prepared.at_opset(backend_named(HOME), options.opset, whole_attention(prepared.model))
    kept, there = samples_to_judge(prepared.model, data, options, image, reporter)
    table = _table(per_channel=per_channel)
    made = _made(float_model, table, options, reporter)
    with reporter.phase("check", total=1, unit="models") as advance:
        checked = first_look(
            prepared.model,
            made.model,
            kept,
            float_bytes=prepared.bytes,
            given=prepared.given,
            **options.session,
        ).completed()
        advance(1)
    nothing = [] if made.quantized or made.stored else [nothing_done(made.refused, _NOTHING)]
    slow = slower_than_float(made.quantized, made.stored, checked)
    checked = told(checked, options, [*prepared.warnings, *nothing], slow=slow, there=there)
    files = save(made.model, output)
    only_stored = made.stored and not made.quantized
    notes = ["nothing runs in integers: weights are stored as integers alone"] if only_stored else []
    title = f"dynamic: int8 weights per {'channel' if per_channel else 'tensor'}"
    if made.reduced:
        title += ", reduced range"
    return Rewritten(title, files, made.quantized, made.refused, notes, prepared.notes, checked, made.stored)


@dataclass(frozen=True)
class _Made:
    """A model quantized dynamically.

    Attributes:
        model: as it is written.
        quantized: node name → operator, of what runs in integers.
        stored: of what computes in float, with its weights stored as integers.
        refused: what could have run in integers, and why it does not.
        reduced: weights have a reduced range, see :mod:`onnxq.calibration.reduced`.
    """

    model: ir.Model
    quantized: Mapping[str, str]
    stored: Mapping[str, str]
    refused: Sequence[Kept]
    reduced: bool


def _made(model: ir.Model, table: Backend, options: Options, reporter: Reporter) -> _Made:
    """Store the weights of a float model, and make what can run in integers take its ranges at each run."""
    chosen, refused = layers_to_quantize(model, options)
    plan, lacking = _plan(model, table, options, chosen)
    reduced = reduces(table, options)
    summed = {name for name, op in chosen.items() if op not in _CONVOLUTIONS}  # a ConvInteger does not overflow
    numbers = _numbers(model, plan, summed if reduced else (), reporter)
    result = Quantized(model, plan, numbers, table).qdq()
    done = take_ranges_at_run(result, chosen.keys() & plan.stored.keys())
    finish = backend_named(HOME).finish
    if finish is not None:
        finish(result, plan)
    forget_shapes(result)
    left = [
        Kept(name, op, lacking.get(name) or "its weights are computed at run time, or not float32")
        for name, op in chosen.items()
        if name not in done
    ]
    quantized = {name: op for name, op in chosen.items() if name in done}
    stored = {name: op for name, op in plan.stored.items() if name not in done}
    return _Made(result, quantized, stored, [*refused, *left], reduced)


def runs_in_integers(model: ir.Model, options: Options) -> dict[str, str]:
    """Node name → operator of what would run in integers.

    Args:
        model: a normalized model.
        options: ``include`` and ``exclude`` count.
    """
    return layers_to_quantize(model, options)[0]


def _table(*, per_channel: bool) -> Backend:
    """onnxruntime's table, all weights in it only stored, and what is left to do with a rendered model undone."""
    home = backend_named(HOME)
    rules = [replace(rule, kind=Kind.WEIGHT_ONLY, bias=None) for rule in home.rules.values() if rule.weights]
    return replace(
        home,
        rules={rule.op: rule for rule in rules},
        per_channel=per_channel,
        whole=frozenset(),
        stored_because={},
        finish=None,
    )


def _plan(model: ir.Model, table: Backend, options: Options, chosen: Mapping[str, str]) -> tuple[Plan, dict[str, str]]:
    """Whose weights are stored: of all that is to run in integers, of the others where they are large; and why not."""
    nodes = {node.name or "": node for node in all_nodes(model)}

    def lacking(plan: Plan) -> dict[str, str]:
        bad = unusable_constants(model, plan)
        sizes: dict[str, int] = {}
        found: dict[str, str] = {}
        for site in plan.sites:
            for edge in site.readers:
                value = nodes[edge.node].inputs[edge.index]
                sizes[edge.node] = max(sizes.get(edge.node, 0), elements(value) if value is not None else 0)
                if site.tensor in bad:
                    found[edge.node] = bad[site.tensor]
        found |= {n: _UNCORRECTED for n, op in plan.stored.items() if op in _CONVOLUTIONS and n not in chosen}
        small = {n: "too few weights to store as integers" for n, size in sizes.items() if size < _LEAST_STORED}
        return {**{n: why for n, why in small.items() if n not in chosen}, **found}

    wanted = Options(include=options.include, exclude=options.exclude, placement="all")
    plan = settled_plan(model, table, wanted, lacking)
    return plan, {k.node: k.reason for k in plan.kept_float if k.node not in plan.stored}


def _numbers(model: ir.Model, plan: Plan, reduced: Container[str], reporter: Reporter) -> dict[str, QParams]:
    """The scale of every weight, one weight at a time in memory; those that some nodes read have a reduced range."""
    constants, nodes = all_constants(model), {node.name or "": node for node in all_nodes(model)}
    numbers: dict[str, QParams] = {}
    with reporter.phase("quantize", total=len(plan.sites), unit="weights") as advance:
        for count, site in enumerate(plan.sites, 1):
            array = constant_array(constants[site.tensor])
            assert array is not None
            found = from_range(*weight_range(array, site.spec), site.spec)
            readers = [nodes[edge.node] for edge in site.readers if edge.node in reduced]
            numbers[site.name] = reduced_numbers(found, readers, constants[site.tensor])
            advance(count)
    return numbers


def _require_target(output: str | os.PathLike[str]) -> None:
    path = Path(output)
    if not path.absolute().parent.is_dir():
        raise OutputError("the folder does not exist", where=str(path.parent), hint="Create it first")
