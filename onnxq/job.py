"""One target of a run: its options checked, then decided, verified, mended, and told."""

from __future__ import annotations

from dataclasses import replace
from importlib import metadata

import onnx_ir as ir

from onnxq.algorithm import FloatDraft
from onnxq.algorithm_choice import Choice, chosen, run
from onnxq.backend import Backend
from onnxq.best import improve
from onnxq.calibration.ranges import check_range
from onnxq.calibration.roles import samples_to_verify, to_judge_by
from onnxq.calibration.statistics import Statistics
from onnxq.console.progress import Reporter
from onnxq.deciding.decide import decide
from onnxq.deciding.decider import Decider
from onnxq.deciding.mend import mend
from onnxq.effort import algorithms_of, learns
from onnxq.errors import OptionError
from onnxq.graph.shapes import forget_shapes
from onnxq.graph.values import filled_values
from onnxq.measuring.final_check import Verification, final_check
from onnxq.measuring.rewrite_cost import rewrite_cost
from onnxq.notes.cautions import cautions
from onnxq.notes.commands import compare_command
from onnxq.notes.hints import few_bits, hints, low
from onnxq.notes.lacking import lacking
from onnxq.notes.unmet import unmet
from onnxq.options import Options
from onnxq.planning.one_way import require_one_way
from onnxq.planning.planner import make_plan
from onnxq.prepare import Prepared, backend_named, needed_opset
from onnxq.quantized import Quantized
from onnxq.render.formats import FAKE_QUANTIZE
from onnxq.spec import WIDE

__all__ = ["Job"]


class Job:
    """One target of a run: the options as it understands them, checked before any work."""

    def __init__(self, backend: str, options: Options) -> None:
        self.target, self.options = backend_named(backend), options
        self.choices: list[Choice] = chosen(algorithms_of(options))
        if self.choices and all(choice.stage == "options" for choice in self.choices):
            effort = algorithms_of(replace(options, algorithms=()))  # these choose bits, the effort does the rest
            self.choices += chosen(effort)
        for method in (options.range, *(o.range for _, o in options.override if o.range is not None)):
            check_range(method, self.target.activation)
        self.target.require(options)
        self.format = self.target.format_named(options.format)

    def fitted(self, prepared: Prepared) -> tuple[ir.Model, list[str]]:
        """The model as the target wants it; options that do not fit the model are an error before any data is run."""
        model, notes = prepared.for_target(self.target, self.options)
        require_one_way(make_plan(model, self.target, self.options), self.target, self.options)
        return model, notes

    def run(
        self, prepared: Prepared, fitted: tuple[ir.Model, list[str]], statistics: Statistics, reporter: Reporter
    ) -> Quantized:
        target, options, choices = self.target, self.options, self.choices
        float_model, notes = fitted[0], [*prepared.notes, *fitted[1]]
        keep_float: dict[str, str] = {}
        told: list[str] = []
        stages = {choice.stage for choice in choices}
        if stages & {"float", "options"}:
            draft = FloatDraft(float_model.clone(), target, options, statistics, reporter)
            run(choices, draft)
            statistics, keep_float, options, told = draft.statistics, draft.keep_float, draft.options, draft.warnings
            float_model, more = prepared.raised(draft.model, needed_opset(target, options))
            notes += [*draft.notes, *more]
        version = metadata.version("onnxq")
        decider = Decider(float_model, target, options, statistics, choices, version, keep_float, reporter)
        quantized = decide(decider)
        verification = _verified(quantized, prepared, statistics, options)
        searching = options.placement != "all" and options.effort != "fast" and target.mixes
        searching = searching and min(target.bits(options)) >= 8
        searching = searching and "options" not in stages  # bits under a budget, which float layers would break
        if searching:

            def verify(other: Quantized) -> Verification:
                return _verified(other, prepared, statistics, options)

            def raised(model: ir.Model) -> ir.Model | None:
                opset = _opset_of_wide_weights(target, options)
                return prepared.raised(model, opset)[0] if opset is not None else None

            quantized, verification = mend(decider, quantized, verification, verify, raised, reporter)
        if options.effort == "best" and not options.algorithms and statistics.kept:
            quantized, tried = improve(quantized, decider, to_judge_by(statistics.kept), reporter)
            decider.notes += [note for note in tried if note not in decider.notes]
            verification = _verified(quantized, prepared, statistics, options)
        filled = {value.name for value in filled_values(quantized.model)}
        told += statistics.warnings(set(quantized.plan.observed()) - filled)
        told += [*prepared.warnings, *decider.warnings, *verification.warnings]
        if target.rewrite is not None:
            told += rewrite_cost(fitted[0], target.name, verification, statistics.kept, options)
        told += [*lacking(fitted[0], target, options), *unmet(float_model, quantized.plan, target, options)]
        form = self.format
        packed = not form.simulated and form is not FAKE_QUANTIZE
        compare = compare_command(target, options.format)
        told += cautions(quantized.plan, verification, options, statistics, packed=packed, compare=compare)
        verification = replace(verification, warnings=tuple(told))
        unsaid = form.notes(quantized) if form.notes is not None else []
        advice = (*hints(float_model, quantized.plan, target, decider.sizes), *decider.hints)
        if options.effort != "best":  # which has tried it
            advice += few_bits(quantized.plan, quantized.qparams, quantized.recipe)
        advice += low(float_model, quantized.plan, verification, target, options, decider.sizes)
        return replace(quantized, verification=verification, notes=(*notes, *decider.notes, *unsaid), hints=advice)


def _opset_of_wide_weights(target: Backend, options: Options) -> int | None:
    """The opset of a result in which some weights have 16 bits; None where the options or the target rule them out."""
    if options.weight_bits is not None:
        return None
    try:
        wide = replace(options, weight_bits=WIDE)
        target.require(wide)
        return needed_opset(target, wide)
    except OptionError:
        return None


def _verified(quantized: Quantized, prepared: Prepared, statistics: Statistics, options: Options) -> Verification:
    result = quantized.simulated() if quantized.is_simulated else quantized.rendered()
    forget_shapes(result)
    return final_check(
        prepared.model,
        result,
        samples_to_verify(statistics.kept, learns(options), quantized.backend.at_home),
        float_bytes=prepared.bytes,
        providers=options.providers,
        custom_op_library=options.custom_op_library,
        at_home=quantized.backend.at_home,
    )
