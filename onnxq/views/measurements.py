"""How it looks what was found out about a model: statistics, plan, findings, errors of tensors, sensitivity."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from onnxq.calibration.statistics import Statistics
from onnxq.checks.findings import Finding, together
from onnxq.compare import Comparison
from onnxq.console.terminal import Screen, bytes_text, decibel, decibels, number, plural
from onnxq.measuring.metrics import Errors
from onnxq.plan import Plan
from onnxq.views.parts import (
    ROWS,
    drops_table,
    heading,
    is_counted,
    kept_rows,
    labelled,
    more_line,
    of_kinds,
    warning_lines,
    worst_outputs,
)

if TYPE_CHECKING:
    from onnxq.measuring.sensitivities import Sensitivity

__all__ = ["calibrated", "comparison", "findings", "plan", "sensitivity"]


def calibrated(screen: Screen, source: str, output: str, made: Statistics, size: int, seconds: float) -> None:
    """The summary of ``onnxq calibrate``."""
    heading(screen, f"{source} → {output}", f"{bytes_text(size)}, {seconds:.1f} s")
    rows = [
        ("samples", f"{made.samples} ({len(made.kept)} kept for verification)"),
        ("tensors", f"{len(made.tensors)}"),
    ]
    rows += labelled("not seen", (f"{n}: {why}" for n, why in made.unobservable.items()))
    screen.pairs(rows)
    warning_lines(screen, made.warnings())


def plan(screen: Screen, source: str, made: Plan, *, verbose: bool) -> None:
    """The plan as a table of sites and a summary."""
    heading(screen, f"{source} on {made.backend}")
    rows = []
    for site in made.sites:
        extra = f"as {site.tied_to}" if site.tied_to else ""
        if site.fixed:
            extra = f"fixed range {site.fixed[0]:g}..{site.fixed[1]:g}"
        elif site.role == "activation" and not site.tied_to:
            extra = f"range {site.spec.range}"
        readers = ", ".join(dict.fromkeys(edge.node for edge in site.readers))
        rows.append((site.tensor, site.role, str(site.spec), extra, readers))
    if rows:
        screen.table(("tensor", "role", "how", "scale", "read by"), rows)
        screen.line()
    ties = sum(site.tied_to is not None for site in made.sites)
    summary = [("quantized", f"{made.done} of {made.total} nodes{of_kinds(made.quantized.values())}")]
    if made.absorbed:
        summary.append(("absorbed", f"{plural(len(made.absorbed), 'activation function')} into the node before"))
    if ties:
        summary.append(("tied", f"{plural(ties, 'tensor')} sharing the scale of another"))
    screen.pairs(summary + kept_rows(made.kept_float, verbose))


def findings(screen: Screen, source: str, found: Sequence[Finding]) -> None:
    """Findings, worst first, and a verdict."""
    heading(screen, source)
    colours = {"error": ("bold", "red"), "warning": ("yellow",), "note": ("dim",)}
    for finding in together(found):
        label = screen.style(finding.level.ljust(7), *colours[finding.level])
        hint = f". {screen.style(finding.hint, 'cyan')}" if finding.hint else ""
        screen.line(f"  {label}  {finding.where}: {finding.what}{hint}")
    errors, warnings = (sum(f.level == level for f in found) for level in ("error", "warning"))
    if errors or warnings:
        parts = [plural(n, word) for n, word in ((errors, "error"), (warnings, "warning")) if n]
        screen.line(screen.style(", ".join(parts), "bold", "red" if errors else "yellow"))
    else:
        screen.line(screen.style("No problems found.", "bold", "green"))


def comparison(screen: Screen, made: Comparison, *, everything: bool) -> None:
    """Outputs, the largest drops, and every tensor if asked for."""
    read = f", read as {made.backend} does" if made.backend is not None else ""
    heading(screen, "outputs", plural(made.samples, "sample") + read)
    scored = {name: errors for name, errors in made.outputs.items() if not is_counted(errors)}
    shown = worst_outputs(scored, everything=everything)
    left = len(scored) - len(shown)
    counted = {name: errors for name, errors in made.outputs.items() if is_counted(errors)}
    if made.outputs:
        _errors_table(screen, "output", {**shown, **counted} if left else made.outputs)
    more_line(screen, left)
    drops = made.largest_drops(8)
    if drops:
        screen.line()
        heading(screen, "most is lost at", "dB lost: the lowest SQNR before the node, at most 40, minus its own")
        drops_table(screen, drops)
    if everything and made.tensors:
        screen.line()
        heading(screen, "tensors", "in the order of the graph; * is quantized itself")
        marked = {f"{'*' if t.quantized else ' '} {t.tensor} ({t.op})": t.errors for t in made.tensors}
        _errors_table(screen, "tensor", marked)
    elif made.tensors:
        screen.line()
        judged = [t for t in made.tensors if t.op == "Input" or not math.isnan(t.drop)]
        low = min(judged or made.tensors, key=lambda t: t.errors.sqnr)
        exact = math.isinf(low.errors.sqnr) and low.errors.sqnr > 0
        least = "all exact" if exact else f"the lowest {decibels(low.errors.sqnr)} ({low.tensor})"
        screen.line(f"{plural(len(made.tensors), 'tensor')} compared, {least}; --all lists them.")
    warning_lines(screen, made.warnings)


def _errors_table(screen: Screen, title: str, rows: Mapping[str, Errors]) -> None:
    head = (title, "SQNR dB", "centred", "median", "worst", "sample", "cosine", "max error", "of peak")
    cells = []
    for name, e in rows.items():
        if is_counted(e):
            cells.append((name, f"{e.agreement:.2%} equal", *[""] * 7))
            continue
        sample = "" if e.worst_sample is None else str(e.worst_sample)
        levels = (decibel(e.sqnr), decibel(e.sqnr_centred), decibel(e.median), decibel(e.worst))
        cosine = "-" if math.isnan(e.cosine) else f"{e.cosine:.5f}"
        cells.append((name, *levels, sample, cosine, number(e.max_error), number(e.peak)))
    screen.table(head, cells, right=range(1, len(head)))
    for name, e in rows.items():
        if e.reshaped:
            screen.line(f"  {name.strip()}: {plural(e.reshaped, 'sample')} of another shape, left out")
        if e.broken:
            screen.line(f"  {name.strip()}: {plural(e.broken, 'value')} NaN or infinite in the quantized model only")


def sensitivity(screen: Screen, source: str, plot: str | None, made: Sensitivity, *, everything: bool) -> None:
    """Which layers hurt, worst first: weights, then activations."""
    heading(
        screen, source, f"{made.backend}, {plural(made.samples, 'sample')}, {made.runs} runs in {made.seconds:.1f} s"
    )
    titles = (("weights", "weights of"), ("activations", "activation"))
    for role, title in titles:
        rows = made.of(role)
        if not rows:
            screen.line()
            screen.line(f"No {role} are quantized by this plan: onnxq plan says why, --placement all changes it")
            continue
        listed = rows if everything else rows[:ROWS]
        own = any(row.local for row in rows)
        head = [title, "op", *(f"{b} bits" for b in made.bits), *(f"own {b}" for b in made.bits if own)]
        cells = []
        for row in listed:
            ops = "" if row.members > 1 or not row.ops else row.ops[0]
            mine = [decibel(row.local[b]) if b in row.local else "-" for b in made.bits if own]
            cells.append([row.name, ops, *(decibel(row.sqnr[b]) for b in made.bits), *mine])
        screen.line()
        screen.table(head, cells, right=range(2, len(head)))
        more_line(screen, len(rows) - len(listed))
        for name, table in (("all together", made.together), ("added up", made.added)):
            figures = ", ".join(f"{decibels(table[role][b])} at {b} bits" for b in made.bits)
            screen.line(f"  {name}: {figures}")
    screen.line()
    own_too = "; own: at the layer's own output" if any(row.local for row in made.rows) else ""
    screen.line(f"SQNR in dB at the worst output when it alone is quantized{own_too}. Low is bad.")
    warning_lines(screen, made.warnings)
    if plot:
        screen.line(f"The picture: {plot}")
