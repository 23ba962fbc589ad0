"""One target of a run: its options checked, then decided, verified, mended, and told."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from importlib import metadata

import onnx_ir as ir

from onnxq.algorithm import FloatDraft
from onnxq.algorithm_choice import Choice, chosen, run
from onnxq.backend import Backend, Format
from onnxq.best import improve
from onnxq.calibration.statistics import Statistics
from onnxq.console.progress import Reporter
from onnxq.deciding.decide import decide
from onnxq.deciding.decider import Decider
from onnxq.deciding.mend import mend
from onnxq.deciding.sure_classes import told_by_classes
from onnxq.deciding.turned import turned
from onnxq.effort import algorithms_of, improves, turns
from onnxq.errors import OptionError
from onnxq.graph.values import filled_values
from onnxq.measuring.picked import compared_by, said_of, with_outputs, without_outputs
from onnxq.measuring.rewrite_cost import rewrite_cost
from onnxq.measuring.verification import Verification
from onnxq.notes.cautions import cautions
from onnxq.notes.commands import compare_command
from onnxq.notes.hints import few_bits, hints, low
from onnxq.notes.lacking import lacking
from onnxq.notes.unmet import unmet
from onnxq.options import Options
from onnxq.planning.one_way import require_one_way
from onnxq.planning.planner import make_plan
from onnxq.prepare import Fitted, Prepared, backend_named, needed_opset
from onnxq.quantized import Quantized
from onnxq.render.formats import FAKE_QUANTIZE
from onnxq.result_check import ResultCheck
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
        self.target.require(options)
        self.format = self.target.format_named(options.format)

    def fitted(self, prepared: Prepared) -> Fitted:
        """The model as the target wants it; options that do not fit the model are an error before any data is run."""
        found = prepared.for_target(self.target, self.options)
        require_one_way(make_plan(found.model, self.target, self.options), self.target, self.options)
        return found

    def run(
        self,
        prepared: Prepared,
        fitted: Fitted,
        statistics: Statistics,
        reporter: Reporter,
        until: float = math.inf,
    ) -> Quantized:
        """Decide, verify, mend and improve, and say of the result what there is to say.

        Args:
            prepared: the model that was calibrated.
            fitted: what :meth:`fitted` gave.
            statistics: of ``prepared``.
            reporter: shows progress.
            until: time of ``time.monotonic`` at which effort ``best`` ends.

        Returns:
            The quantized model with its verification, warnings, notes and hints.
        """
        by = compared_by(fitted.model, statistics)
        if not by.tensors:
            return self._made(prepared, fitted, statistics, reporter, until)
        shown, judging = with_outputs(fitted.model, statistics, by)
        made = self._made(prepared, fitted._replace(model=shown), judging, reporter, until, by.outputs)
        result = without_outputs(made, {value.name or "" for value in fitted.model.graph.outputs})
        checked = ResultCheck(prepared, statistics, self.options, reporter).full(result)
        assert made.verification is not None
        compared = replace(
            made.verification,
            plain_sqnr=checked.plain_sqnr,
            quantized_bytes=checked.quantized_bytes,
            speedup=checked.speedup,
            float_seconds=checked.float_seconds,
        )
        return replace(result, verification=compared, hints=(said_of(by), *result.hints))

    def _made(
        self,
        prepared: Prepared,
        fitted: Fitted,
        statistics: Statistics,
        reporter: Reporter,
        until: float,
        picked: Collection[str] = (),
    ) -> Quantized:
        """What :meth:`run` gives, of a model whose outputs are compared, but for those that are ``picked``."""
        draft = self._drafted(prepared, fitted, statistics, reporter)
        options = draft.options
        version = metadata.version("onnxq")
        decider = Decider(
            draft.model, self.target, options, draft.statistics, self.choices, version, draft.keep_float, reporter
        )

        mends = self._mends(options)
        checks = ResultCheck(prepared, draft.statistics, options, reporter, picked, searched=mends)

        def raised(model: ir.Model) -> ir.Model | None:
            opset = _opset_of_wide_weights(self.target, options)
            return prepared.raised(model, opset)[0] if opset is not None else None

        def mended(result: Quantized, decider: Decider) -> tuple[Quantized, Verification]:
            if not self._mends(options):
                return result, checks.look(result)
            return mend(decider, result, checks.look(result), checks.look, raised, reporter)

        first = decide(decider, raised if self._mends(options) else None)
        other = turned(first, decider, draft) if turns(options) else None
        if other is None:
            quantized, verification = mended(first, decider)
        else:
            quantized, verification = mended(*other[:2])
            if quantized.plan.quantized:
                _, decider, draft = other
            else:  # in which turning would have helped integers
                quantized, verification = mended(first, decider)
        if improves(options) and draft.statistics.kept:
            checks.forget()
            quantized, tried = improve(quantized, decider, reporter, until)
            decider.notes += [note for note in tried if note not in decider.notes]
            verification = checks.look(quantized)
        verification = checks.complete(quantized, verification)
        sure: tuple[str, ...] = ()
        if self._mends(options):
            verification, sure = told_by_classes(decider, quantized, verification)
        before = [*prepared.warnings, *decider.warnings]
        rewritten = fitted.model is not prepared.model
        said = _warnings(quantized, verification, before, fitted.model, draft, self.format, rewritten=rewritten)
        unsaid = self.format.notes(quantized) if self.format.notes is not None else []
        return replace(
            quantized,
            verification=replace(verification, warnings=(*draft.warnings, *said)),
            notes=(*prepared.notes, *fitted.notes, *draft.notes, *decider.notes, *unsaid),
            hints=(*sure, *_hints(quantized, verification, draft, decider)),
        )

    def _drafted(self, prepared: Prepared, fitted: Fitted, statistics: Statistics, reporter: Reporter) -> FloatDraft:
        """The float model, and what is known of it, after the algorithms that change these."""
        model, stages = fitted.model, {choice.stage for choice in self.choices}
        if not stages & {"float", "options"}:
            return FloatDraft(model, self.target, self.options, statistics, reporter)
        draft = FloatDraft(model.clone(), self.target, self.options, statistics, reporter)
        run(self.choices, draft)
        draft.model, notes = prepared.raised(draft.model, needed_opset(self.target, draft.options))
        draft.notes += notes
        return draft

    def _mends(self, options: Options) -> bool:
        """Whether a poor result is searched for a better one."""
        if options.placement == "all" or options.effort == "fast" or not self.target.mixes:
            return False
        budget = any(choice.stage == "options" for choice in self.choices)  # of bits, which float layers would break
        return min(self.target.bits(options)) >= 8 and not budget


def _warnings(
    quantized: Quantized,
    verification: Verification,
    before: Sequence[str],
    fitted: ir.Model,
    draft: FloatDraft,
    form: Format,
    *,
    rewritten: bool,
) -> list[str]:
    """What to be careful of, of a finished result.

    Args:
        quantized: the result.
        verification: of it.
        before: what preparing and deciding warn of.
        fitted: the float model as the target wants it.
        draft: the same as the algorithms have left it, with what is known of it.
        form: in which the result is written.
        rewritten: whether the float model as the target wants it is another one than was calibrated.
    """
    target, options, statistics = draft.target, draft.options, draft.statistics
    filled = {value.name for value in filled_values(quantized.model)}
    told = statistics.warnings(set(quantized.plan.observed()) - filled)
    told += [*before, *verification.warnings]
    if target.rewrite is not None and rewritten:
        told += rewrite_cost(fitted, target.name, verification, statistics.kept, options)
    told += [*lacking(fitted, target, options), *unmet(draft.model, quantized.plan, target, options)]
    packed = not form.simulated and form is not FAKE_QUANTIZE
    compare = compare_command(target, options.format)
    told += cautions(quantized.plan, verification, options, statistics, packed=packed, compare=compare)
    return told


def _hints(quantized: Quantized, verification: Verification, draft: FloatDraft, decider: Decider) -> tuple[str, ...]:
    """What to try next."""
    model, target, options = draft.model, draft.target, draft.options
    advice = [*hints(model, quantized.plan, target, decider.sizes), *decider.hints]
    if options.effort != "best":  # which has tried it
        advice += few_bits(quantized.plan, quantized.qparams, quantized.recipe)
    advice += low(model, quantized.plan, verification, target, options, decider.sizes, quantized.recipe)
    return tuple(advice)


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
