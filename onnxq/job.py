"""One target of a run: its options checked, then decided, verified, mended, and told."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import onnx_ir as ir

from onnxq.algorithm import FloatDraft
from onnxq.algorithm_choice import Choice, chosen, run
from onnxq.backend import Backend, Format
from onnxq.backend_choice import backend_named
from onnxq.best import improve
from onnxq.calibration.statistics import Statistics
from onnxq.console.progress import Reporter
from onnxq.deciding.decide import decide
from onnxq.deciding.decider import Decider
from onnxq.deciding.mend import mend
from onnxq.deciding.sure_classes import told_by_classes
from onnxq.deciding.turned import turned
from onnxq.deciding.wide_activations import widens
from onnxq.effort import algorithms_of, improves, turns
from onnxq.errors import OptionError
from onnxq.graph.values import filled_values
from onnxq.measuring.picked import compared_by, said_of, with_outputs, without_outputs
from onnxq.measuring.rewrite_cost import rewrite_cost
from onnxq.measuring.verification import Verification
from onnxq.notes.by_zero import by_zero
from onnxq.notes.cautions import cautions
from onnxq.notes.commands import compare_command
from onnxq.notes.hints import few_bits, hints, low
from onnxq.notes.in_vain import in_vain
from onnxq.notes.lacking import lacking
from onnxq.notes.reduced import reduced
from onnxq.notes.tables import unpacked_whole
from onnxq.notes.unmet import unmet
from onnxq.options import Options
from onnxq.planning.one_way import require_one_way
from onnxq.planning.planner import make_plan
from onnxq.prepare import Fitted, Prepared, needed_opset
from onnxq.quantized import Quantized
from onnxq.render.formats import FAKE_QUANTIZE
from onnxq.result_check import ResultCheck
from onnxq.spec import WIDE

__all__ = ["Job"]


class _Given(NamedTuple):
    """What a run is given, see :meth:`Job.run`."""

    prepared: Prepared
    fitted: Fitted
    statistics: Statistics
    reporter: Reporter
    until: float


class _Found(NamedTuple):
    """A result, what running it showed, what decided it, and the float model that it is of, as that was drafted."""

    quantized: Quantized
    verification: Verification
    decider: Decider
    draft: FloatDraft


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
        given = _Given(prepared, fitted, statistics, reporter, until)
        by = compared_by(fitted.model, statistics)
        if not by.tensors:
            return self._made(given)
        shown, judging = with_outputs(fitted.model, statistics, by)
        own = {value.name or "" for value in fitted.model.graph.outputs}

        def completed(result: Quantized, verification: Verification) -> Verification:
            check = ResultCheck(prepared, statistics, self.options, reporter)
            return check.complete_as(without_outputs(result, own), verification)

        given = given._replace(fitted=fitted._replace(model=shown), statistics=judging)
        made = self._made(given, by.outputs, completed)
        return replace(without_outputs(made, own), hints=(said_of(by), *made.hints))

    def _made(
        self,
        given: _Given,
        picked: Collection[str] = (),
        completed: Callable[[Quantized, Verification], Verification] | None = None,
    ) -> Quantized:
        """What :meth:`run` gives, of a model whose outputs are compared, but for those that are ``picked``.

        Args:
            given: what the run was given.
            picked: outputs that are not compared.
            completed: completes the check of the result, see :meth:`ResultCheck.complete_as`; None: as of any other.
        """
        draft = self._drafted(given)
        mends = self._mends(draft.options)
        checks = ResultCheck(given.prepared, draft.statistics, draft.options, given.reporter, picked, searched=mends)
        found = self._decided(given, draft, checks)
        if improves(draft.options) and draft.statistics.kept:
            checks.forget()
            better, tried = improve(found.quantized, found.decider, given.until)
            found.decider.notes += [note for note in tried if note not in found.decider.notes]
            found = found._replace(quantized=better, verification=checks.look(better))
        if completed is None:
            checked = checks.complete(found.quantized, found.verification)
        else:
            checks.forget()
            checked = completed(found.quantized, found.verification)
        found = found._replace(verification=checked)
        sure: tuple[str, ...] = ()
        if mends:
            checked, sure = told_by_classes(found.decider, found.quantized, found.verification)
            found = found._replace(verification=checked)
        return self._told(given, found, sure)

    def _told(self, given: _Given, found: _Found, sure: Sequence[str]) -> Quantized:
        """The result with what there is to say of it; ``sure``: hints on classes, which come first."""
        prepared, fitted = given.prepared, given.fitted
        rewritten = fitted.model is not prepared.model
        said = _warnings(found, prepared.warnings, fitted.model, self.format, rewritten=rewritten)
        said += in_vain(found.quantized.model, found.quantized.plan, self.options)
        fitted_notes = (*fitted.notes, *reduced(found.quantized.plan, found.draft.options))
        unsaid = self.format.told(found.quantized)
        return replace(
            found.quantized,
            verification=replace(found.verification, warnings=(*found.draft.warnings, *said)),
            notes=(*prepared.notes, *fitted_notes, *found.draft.notes, *found.decider.notes, *unsaid),
            hints=(*sure, *_hints(found)),
        )

    def _decided(self, given: _Given, draft: FloatDraft, checks: ResultCheck) -> _Found:
        """The result of a draft, or of the draft with its channels turned where that is better; mended where poor."""
        options = draft.options
        mends = self._mends(options)
        decider = Decider(
            draft.model, self.target, options, draft.statistics, self.choices, draft.keep_float, given.reporter
        )

        @cache  # steps of mending ask for the same one, and what was measured of it is known by the model
        def raised(model: ir.Model) -> ir.Model | None:
            opset = _opset_of_wide_weights(self.target, options)
            return given.prepared.raised(model, opset)[0] if opset is not None else None

        def mended(result: Quantized, decider: Decider, draft: FloatDraft) -> _Found:
            checked = checks.look(result)
            if mends:
                result, checked = mend(decider, result, checked, checks.look, raised)
            return _Found(result, checked, decider, draft)

        first = decide(decider, raised if mends else None)
        other = turned(first, decider, draft) if turns(options) else None
        if other is not None:
            found = mended(*other)
            if found.quantized.plan.quantized:  # else no integers are left that turning would have helped
                return found
        return mended(first, decider, draft)

    def _drafted(self, given: _Given) -> FloatDraft:
        """The float model, and what is known of it, after the algorithms that change these."""
        model, stages = given.fitted.model, {choice.stage for choice in self.choices}
        if not stages & {"float", "options"}:
            return FloatDraft(model, self.target, self.options, given.statistics, given.reporter)
        draft = FloatDraft(model.clone(), self.target, self.options, given.statistics, given.reporter)
        run(self.choices, draft)
        draft.model, notes = given.prepared.raised(draft.model, needed_opset(self.target, draft.options))
        draft.notes += notes
        return draft

    def _mends(self, options: Options) -> bool:
        """Whether a poor result is searched for a better one."""
        able = self.target.mixes or widens(self.target)
        if options.placement == "all" or options.effort == "fast" or not able:
            return False
        budget = any(choice.stage == "options" for choice in self.choices)  # of bits, which float layers would break
        return min(self.target.bits(options)) >= 8 and not budget


def _warnings(found: _Found, prepared: Sequence[str], fitted: ir.Model, form: Format, *, rewritten: bool) -> list[str]:
    """What to be careful of, of a finished result.

    Args:
        found: the result.
        prepared: what preparing warns of.
        fitted: the float model as the target wants it.
        form: in which the result is written.
        rewritten: whether the float model as the target wants it is another one than was calibrated.
    """
    quantized, verification, decider, draft = found
    target, options, statistics = draft.target, draft.options, draft.statistics
    filled = {value.name for value in filled_values(quantized.model)}
    told = statistics.warnings(set(quantized.plan.observed()) - filled)
    told += [*prepared, *decider.warnings, *verification.warnings]
    if target.rewrite is not None and rewritten:
        told += rewrite_cost(fitted, target.name, verification, statistics.kept, options)
    told += form.warned(quantized)
    told += [*lacking(fitted, target, decider.options), *unmet(draft.model, quantized.plan, target, options)]
    packed = not form.simulated and form is not FAKE_QUANTIZE
    compare = compare_command(target, options.format)
    whole = unpacked_whole(quantized.model, quantized.plan.stored)
    told += cautions(quantized.plan, verification, options, statistics, packed=packed, whole=whole, compare=compare)
    return told


def _hints(found: _Found) -> tuple[str, ...]:
    """What to try next."""
    quantized, verification, decider, draft = found
    model, target, options = draft.model, draft.target, draft.options
    advice = [*by_zero(quantized, draft.statistics, verification)]
    advice += [*hints(model, quantized.plan, target, decider.sizes), *decider.hints]
    if options.effort != "best":  # which has tried it
        advice += few_bits(quantized.plan, quantized.qparams, quantized.recipe)
    advice += low(model, quantized.plan, verification, target, decider.options, decider.sizes, quantized.recipe)
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
