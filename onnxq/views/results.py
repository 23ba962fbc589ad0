"""How a result looks: what was quantized, how well, and how large."""

from __future__ import annotations

import math
import shlex
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from onnxq import plugins
from onnxq.console.terminal import Screen, bytes_text, counts, decibels, pace, plural
from onnxq.effort import TRIED, UNTRIED
from onnxq.measuring.joined import hidden
from onnxq.measuring.verification import OtherSize, SourceAgreement, Verification
from onnxq.notes.tables import unpacked_whole
from onnxq.quantized import Quantized
from onnxq.render.formats import FAKE_QUANTIZE
from onnxq.views.parts import (
    accuracy_text,
    drops_table,
    heading,
    hint_lines,
    is_counted,
    kept_rows,
    labelled,
    note_lines,
    of_kinds,
    smaller,
    warning_lines,
    worst_outputs,
)

if TYPE_CHECKING:
    from onnxq.notes.remedies import Shortfall
    from onnxq.rewritten import Rewritten

__all__ = ["below_floor", "quantized", "rewritten", "several"]

_MOST_NAMED = 3
"""Targets named before a remark about them; of more, their number is."""
_SLOWER = 0.95


def quantized(
    screen: Screen,
    source: str,
    output: str | None,
    result: Quantized,
    seconds: float,
    *,
    verbose: bool,
    unsaid: Container[str] = (),
) -> None:
    """The summary of ``onnxq quantize``, without warnings and hints that stay ``unsaid``: what follows says them."""
    plan, check = result.plan, result.verification
    written = ", ".join(str(path) for path in result.files) or output
    heading(screen, f"{source} → {written}" if written else source, f"{result.backend.title}, {seconds:.1f} s")
    absorbed = f" (+ {counts(_ops(result, plan.absorbed))} absorbed)" if plan.absorbed else ""
    rows = [("quantized", f"{plan.done} of {plan.total} nodes{of_kinds(plan.quantized.values())}{absorbed}")]
    if result.recipe and plan.sites:
        first, *rest = result.recipe
        known = first.partition(":")[0] in plugins.names("onnxq.ranges")
        rows.append(("by", ", ".join((f"{first} ranges" if known else first, *rest))))
    rows += [("tried", note.removeprefix(TRIED)) for note in result.notes if note.startswith(TRIED)]
    rows += [("not tried", note.removeprefix(UNTRIED)) for note in result.notes if note.startswith(UNTRIED)]
    if plan.stored:
        rows.append(("weights", _weights(result)))
    rows += kept_rows(plan.kept_float, verbose)
    if check is not None:
        rows += _check_rows(screen, result, check, verbose)
    rows += labelled("hint", (hint for hint in result.hints if hint not in unsaid))
    rows += labelled("next", _next(result))
    screen.pairs(rows)
    warning_lines(screen, (text for text in (check.warnings if check else ()) if text not in unsaid))
    if verbose:
        note_lines(screen, (note for note in result.notes if not note.startswith((TRIED, UNTRIED))))


def _check_rows(screen: Screen, result: Quantized, check: Verification, verbose: bool) -> Iterator[tuple[str, str]]:
    """What was measured of a result."""
    yield from _sqnr_rows(check, verbose)
    yield from _agreement_rows(check)
    before = check.against_source.given_bytes if check.against_source is not None else check.float_bytes
    yield "size", _size(result, before, check.quantized_bytes)
    if check.speedup is not None and (result.plan.quantized or result.plan.stored):
        yield "speed", _speed(screen, check.speedup, check.other_size)
    yield "checked", _checked(result, check)
    if check.against_source is not None:
        yield "as given", _as_given(check.against_source)


def _speed(screen: Screen, speedup: float, other: OtherSize | None) -> str:
    """On the typical sample, and where there is one of quite another size, on that."""
    text = f"{pace(speedup)}, one thread of this machine"
    if other is not None:
        text += f"; {pace(other.speedup)} on {other.where}"
    slowest = min(speedup, other.speedup if other is not None else speedup)
    return screen.style(text, "yellow") if slowest < _SLOWER else text


def _size(result: Quantized, before: int, after: int) -> str:
    """Two sizes, and what makes of the result's files what is smaller, where these are still float."""
    form = result.backend.format_named(result.format)
    if form.simulated and not form.compiled:
        return f"{bytes_text(before)} → {bytes_text(after)}, in float: the target's own tools make integers of it"
    return smaller(before, after)


def _sqnr_rows(check: Verification, verbose: bool) -> list[tuple[str, str]]:
    """The accuracy of float outputs, of many some: see :func:`onnxq.views.parts.worst_outputs`."""
    floats = [(name, errors) for name, errors in check.outputs.items() if not math.isnan(errors.score)]
    scored = {name: errors for name, errors in floats if errors.reshaped or not math.isnan(errors.sqnr)}
    shown = worst_outputs(scored, everything=verbose)
    told = {name: accuracy_text(errors) for name, errors in shown.items()}
    texts = [f"{name}: {text}" if len(scored) > 1 else text for name, text in told.items()]
    rows = labelled("SQNR", [*texts, *_hidden_texts(check)])
    if more := len(scored) - len(shown):
        rows.append(("", f"{plural(more, 'more output')} (-v lists all)"))
    return rows


def _hidden_texts(check: Verification) -> Iterator[str]:
    """The branches that outputs have lost though their figures do not show it, a line for each output."""
    for name, branches in check.branches.items():
        worst = hidden(check.outputs[name], branches)
        if worst is not None:
            whole = f" of {name}" if len(check.outputs) > 1 else ""
            yield f"{worst[0]}{whole}: {decibels(worst[1].sqnr)}, hidden by the rest of that output"


def _weights(result: Quantized) -> str:
    """What becomes of the weights of layers that compute in float; when they do, a runtime of its own decides."""
    stored, form = result.plan.stored, result.backend.format_named(result.format)
    if form.simulated or form is FAKE_QUANTIZE:
        return f"rounded, in float in this format: {counts(stored.values())}"
    if not result.backend.at_home:
        return f"stored as integers: {counts(stored.values())}"
    return _stored(stored, unpacked_whole(result.model, stored))


def _stored(stored: Mapping[str, str], whole: Container[str] = ()) -> str:
    """Which weights are stored as integers, and when onnxruntime makes float of them."""
    rows = [op for name, op in stored.items() if op == "Gather" and name not in whole]
    others = [op for name, op in stored.items() if op != "Gather" or name in whole]
    parts = [f"unpacked to float at load: {counts(others)}"] if others else []
    parts += [f"unpacked row by row as they are read: {counts(rows)}"] if rows else []
    return f"stored as integers, {'; '.join(parts)}"


def _agreement_rows(check: Verification) -> list[tuple[str, str]]:
    """Of outputs that are no float numbers, or of other shapes."""
    told = ((n, e) for n, e in check.outputs.items() if is_counted(e) or (e.reshaped and math.isnan(e.score)))
    return [("agreement", f"{name}: {accuracy_text(errors)}") for name, errors in told]


def _checked(result: Quantized, check: Verification) -> str:
    given = check.against_source
    if given is not None and not check.samples:
        ran = plural(given.ran, "random input") if given.ran else ""
    else:
        ran = plural(check.samples, "sample") if check.samples else ""
    if not result.backend.at_home:
        return f"valid, simulated in onnxruntime, {ran}" if ran else "valid, loads in onnxruntime; it was not run"
    how = "with optimizations on and off"
    return f"valid, runs {how}; {ran}" if ran else f"valid, loads {how}; it was not run"


def _as_given(found: SourceAgreement) -> str:
    """How far a result is from the quantized model it was made of."""
    if found.skipped:
        return f"not compared with the model given: {found.skipped}"
    worst = found.worst
    if worst is not None and not any(errors.reshaped for errors in found.outputs.values()):
        text = "exact" if worst[1].sqnr == math.inf else decibels(worst[1].sqnr)
    else:
        text = "; ".join(f"{name}: {accuracy_text(errors)}" for name, errors in found.outputs.items())
    return f"{text} to the model given, {plural(found.samples, 'random input')}"


def _next(result: Quantized) -> list[str]:
    """What to do with the files written: see them in their own runtime, then the vendor's commands."""
    if not result.files or result.backend.at_home:
        return []
    from onnxq.verify import can_be_read

    path = shlex.quote(str(result.files[0]))
    verify = [f"onnxq verify {path} --backend {result.backend.name} --data DATA"] if can_be_read(result) else []
    return [*verify, *result.next_steps]


def _ops(result: Quantized, names: Iterable[str]) -> list[str]:
    wanted = set(names)
    return [node.op_type for node in result.model.graph.all_nodes() if node.name in wanted]


def several(
    screen: Screen,
    source: str,
    output: str,
    results: Mapping[str, Quantized],
    seconds: float,
    *,
    verbose: bool,
    unsaid: Mapping[str, Container[str]],
) -> None:
    """The summary of ``onnxq quantize`` for several targets: a row each; ``unsaid`` of each target as for one alone."""
    heading(screen, f"{source} → {output}", f"{plural(len(results), 'target')}, {seconds:.1f} s")
    rows = []
    for name, result in results.items():
        plan, check = result.plan, result.verification
        worst = check.worst if check is not None else None
        accuracy = decibels(worst[1].sqnr) if worst is not None else "-"
        files = ", ".join(path.name for path in result.files)
        rows.append((name, f"{plan.done} of {plan.total}", accuracy, files))
    screen.table(("target", "nodes quantized", "SQNR", "files"), rows)
    warned = {name: check.warnings for name, result in results.items() if (check := result.verification) is not None}
    hints = {name: result.hints for name, result in results.items()}
    for show, said in ((warning_lines, warned), (hint_lines, hints)):
        told = {name: [text for text in texts if text not in unsaid.get(name, ())] for name, texts in said.items()}
        show(screen, _by_text(told))
    notes = {name: [n for n in made.notes if verbose or n.startswith(UNTRIED)] for name, made in results.items()}
    note_lines(screen, _by_text(notes))


def _by_text(said: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Each remark once, after the targets it is about."""
    targets: dict[str, list[str]] = {}
    for name, texts in said.items():
        for text in dict.fromkeys(texts):  # a pass that ran twice for a target may have said the same twice
            targets.setdefault(text, []).append(name)
    for text, names in targets.items():
        who = ", ".join(names) if len(names) <= _MOST_NAMED else f"{len(names)} of {len(said)} targets"
        yield f"{who}: {text}"


def rewritten(
    screen: Screen,
    source: str,
    output: str,
    result: Rewritten,
    seconds: float,
    *,
    verbose: bool,
    unsaid: Container[str] = (),
) -> None:
    """The summary of ``onnxq quantize`` with an algorithm that is a pipeline of its own; ``unsaid`` as elsewhere."""
    check = result.verification
    heading(screen, f"{source} → {output}", f"{result.algorithm}, {seconds:.1f} s")
    rows = [("quantized", counts(result.quantized.values()) or "nothing")]
    if result.stored:
        rows.append(("weights", _stored(result.stored)))
    rows += kept_rows(result.kept_float, verbose)
    rows += labelled("note", result.notes)
    rows += _sqnr_rows(check, verbose)
    rows += _agreement_rows(check)
    rows.append(("size", smaller(check.float_bytes, check.quantized_bytes)))
    if check.speedup is not None:
        rows.append(("speed", _speed(screen, check.speedup, check.other_size)))
    ran = f"runs, {plural(check.samples, 'sample')}" if check.samples else "loads; without data it was not run"
    rows.append(("checked", f"valid, {ran}" if check.loaded else "valid ONNX; not loaded, and not run"))
    screen.pairs(rows)
    warning_lines(screen, (text for text in check.warnings if text not in unsaid))
    note_lines(screen, result.details if verbose else ())


def below_floor(screen: Screen, found: Shortfall, *, of: str = "") -> None:
    """Says loudly that a result is bad, and where it goes wrong.

    Args:
        screen: where to say it.
        found: what is wrong with it.
        of: the target, where there are several.
    """
    who = f"{of}, {found.output}" if of else found.output
    text = f"BELOW THE FLOOR: {who} has {decibels(found.sqnr)}, required: {found.floor:g} dB"
    screen.line()
    screen.line(screen.style(text, "bold", "red"))
    if found.suspects:
        screen.line(f"Most is lost here, and '{found.compare}' shows all:")
        drops_table(screen, list(found.suspects.values()))
    if found.ways:
        screen.line(f"{'; '.join(found.ways)}.")
    *tries, last = found.tries
    screen.line(f"Try {', '.join(tries)}{', or ' if len(tries) > 1 else ' or ' if tries else ''}{last}.")
