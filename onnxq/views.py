"""How results look on a terminal: one summary each, aligned, no more than is needed."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from onnxq import plugins
from onnxq.backend import Backend
from onnxq.calibration.statistics import Statistics
from onnxq.compare import Comparison, TensorErrors
from onnxq.effort import TRIED
from onnxq.findings import Finding
from onnxq.metrics import Errors
from onnxq.plan import Kept, Plan
from onnxq.quantized import Quantized
from onnxq.reasons import by_reason, counts
from onnxq.show import ModelView, QuantizedTensor, StatisticsView
from onnxq.spec import QuantSpec, Scheme
from onnxq.terminal import Screen, bytes_text, decibel, number, plural

if TYPE_CHECKING:
    from onnxq.algorithms.draft import Algorithm
    from onnxq.demo.run import DemoResult
    from onnxq.final_check import Verification
    from onnxq.rewritten import Rewritten
    from onnxq.sensitivity import Sensitivity
    from onnxq.verify import Agreement

__all__ = [
    "agreement",
    "algorithms",
    "backends",
    "below_floor",
    "calibrated",
    "comparison",
    "demo",
    "findings",
    "plan",
    "quantized",
    "rewritten",
    "sensitivity",
    "several",
    "shown",
]

_ROWS = 20
_NAMES = 3
_NAMES_WIDTH = 90
_MANY_OUTPUTS = 8
_SLOWER = 0.95


def _head(screen: Screen, left: str, right: str = "") -> None:
    screen.line(f"{screen.style(left, 'bold')}{'  ' + screen.style(right, 'dim') if right else ''}")


def _kept_rows(kept: Sequence[Kept], verbose: bool) -> list[tuple[str, str]]:
    """What stays float, by reason, most frequent first."""
    rows: list[tuple[str, str]] = []
    label = "stays float"
    for reason, members in by_reason(kept):
        rows.append((label, f"{counts(m.op for m in members)}: {reason}"))
        label = ""
        names = [m.node for m in members if m.node]
        shown = names if verbose else _some(names)
        more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
        if verbose:
            rows += [("", f"    {name}") for name in shown]
        elif shown:
            rows.append(("", f"    {', '.join(shown)}{more}"))
    return rows


def _accuracy(errors: Errors) -> str:
    if errors.sqnr == math.inf:
        return "exact"
    text = f"{decibel(errors.sqnr)} dB"
    if errors.samples > 1 and errors.worst_sample is not None:
        text += f", worst sample {decibel(errors.worst)} dB (sample {errors.worst_sample})"
        median = decibel(errors.median)
        text += f", median {median}{' dB' if math.isfinite(errors.median) else ''}"
    return text


def _some(names: Sequence[str]) -> list[str]:
    """The first few names, fewer if they are long; at least one."""
    count = 1
    while count < min(_NAMES, len(names)) and sum(map(len, names[: count + 1])) <= _NAMES_WIDTH:
        count += 1
    return list(names[:count])


def quantized(
    screen: Screen, source: str, output: str | None, result: Quantized, seconds: float, *, verbose: bool
) -> None:
    """The summary of ``onnxq quantize``."""
    plan, check = result.plan, result.verification
    written = ", ".join(str(path) for path in result.files) or output
    _head(screen, f"{source} → {written}" if written else source, f"{result.backend.title}, {seconds:.1f} s")
    done = len(plan.quantized) + len(plan.absorbed)
    total = done + len(plan.kept_float)
    absorbed = f" (+ {counts(_ops(result, plan.absorbed))} absorbed)" if plan.absorbed else ""
    rows = [("quantized", f"{done} of {total} nodes{_listed(plan.quantized.values())}{absorbed}")]
    if result.recipe:
        first, *rest = result.recipe
        known = first.partition(":")[0] in plugins.names("onnxq.ranges")
        rows.append(("by", ", ".join((f"{first} ranges" if known else first, *rest))))
    rows += [("tried", note.removeprefix(TRIED)) for note in result.notes if note.startswith(TRIED)]
    if plan.stored:
        rows.append(("weights", f"stored as integers, unpacked to float at load: {counts(plan.stored.values())}"))
    rows += _kept_rows(plan.kept_float, verbose)
    if check is not None:
        scored = {name: errors for name, errors in check.outputs.items() if not math.isnan(errors.sqnr)}
        listed = sorted(scored.items(), key=lambda pair: pair[1].sqnr)
        for position, (name, errors) in enumerate(listed[: None if verbose else _MANY_OUTPUTS]):
            rows.append(
                ("" if position else "SQNR", f"{name}: {_accuracy(errors)}" if len(listed) > 1 else _accuracy(errors))
            )
        if len(listed) > _MANY_OUTPUTS and not verbose:
            rows.append(("", f"{len(listed) - _MANY_OUTPUTS} better outputs (-v lists them)"))
        for name, errors in check.outputs.items():
            if math.isnan(errors.sqnr) and not math.isnan(errors.agreement):
                rows.append(("agreement", f"{name}: {errors.agreement:.1%} of {errors.elements:,} values equal"))
        rows.append(("size", _smaller(check.float_bytes, check.quantized_bytes)))
        if check.speedup is not None:
            speed = f"{check.speedup:.2f} times as fast as float, one thread of this machine"
            rows.append(("speed", screen.style(speed, "yellow") if check.speedup < _SLOWER else speed))
        rows.append(("checked", _checked(result, check)))
    rows += [("next" if not position else "", step) for position, step in enumerate(_next(result))]
    screen.pairs(rows)
    for warning in check.warnings if check else ():
        screen.line(f"  {screen.style('warning', 'yellow')}  {warning}")
    if verbose:
        for note in (n for n in result.notes if not n.startswith(TRIED)):
            screen.line(f"  {screen.style('note', 'dim')}  {note}")


def several(
    screen: Screen, source: str, output: str, results: Mapping[str, Quantized], seconds: float, *, verbose: bool
) -> None:
    """The summary of ``onnxq quantize`` for several targets: a row each."""
    _head(screen, f"{source} → {output}", f"{plural(len(results), 'target')}, {seconds:.1f} s")
    rows = []
    for name, result in results.items():
        plan, check = result.plan, result.verification
        done = len(plan.quantized) + len(plan.absorbed)
        worst = check.worst if check is not None else None
        accuracy = f"{decibel(worst[1].sqnr)} dB" if worst is not None else "-"
        files = ", ".join(path.name for path in result.files)
        rows.append((name, f"{done} of {done + len(plan.kept_float)}", accuracy, files))
    screen.table(("target", "nodes quantized", "SQNR", "files"), rows)
    for name, result in results.items():
        for warning in result.verification.warnings if result.verification else ():
            screen.line(f"  {screen.style('warning', 'yellow')}  {name}: {warning}")
        for note in result.notes if verbose else ():
            screen.line(f"  {screen.style('note', 'dim')}  {name}: {note}")


def agreement(screen: Screen, found: Agreement, *, verbose: bool) -> None:
    """The summary of ``onnxq verify``."""
    _head(screen, str(found.artifact), found.runtime or "in no runtime of its own")
    kind = "quantizers in the graph" if found.format == "onnx" else f"format {found.format}, read back"
    rows = [("artifact", f"{kind}: {plural(found.tensors, 'tensor')} with a scale")]
    if found.integer or found.floating:  # not every runtime tells
        rows.append(("integer", f"{plural(len(found.integer), 'operator')}{_kinds(found.integer)}"))
        rows.append(("float", f"{plural(len(found.floating), 'operator')}{_kinds(found.floating)}"))
    for position, (name, errors) in enumerate(sorted(found.outputs.items(), key=lambda pair: pair[1].sqnr)):
        steps = f", at most {found.lsb[name]:.2g} steps of its quantizer" if name in found.lsb else ""
        label = "SQNR" if found.simulated else "agreement"
        rows.append(("" if position else label, f"{name}: {_accuracy(errors)}{steps}"))
    rows.append(("compared", found.compared if found.outputs else "nothing: give --data"))
    rows += [("" if position else "remark", text) for position, text in enumerate(found.remarks)]
    if verbose:
        rows += [("integer", name) for name in found.integer] + [("float", name) for name in found.floating]
    screen.pairs(rows)


def _kinds(names: Sequence[str]) -> str:
    return _listed(name.split()[0] for name in names if name)


def rewritten(screen: Screen, source: str, output: str, result: Rewritten, seconds: float, *, verbose: bool) -> None:
    """The summary of ``onnxq quantize`` with an algorithm that is a pipeline of its own."""
    check = result.verification
    _head(screen, f"{source} → {output}", f"{result.algorithm}, {seconds:.1f} s")
    rows = [("quantized", counts(result.quantized.values()) or "nothing"), *_kept_rows(result.kept_float, verbose)]
    rows += [("" if position else "note", note) for position, note in enumerate(result.notes)]
    scored = [(name, errors) for name, errors in check.outputs.items() if not math.isnan(errors.sqnr)]
    for position, (name, errors) in enumerate(sorted(scored, key=lambda pair: pair[1].sqnr)):
        rows.append(
            ("" if position else "SQNR", f"{name}: {_accuracy(errors)}" if len(scored) > 1 else _accuracy(errors))
        )
    rows.append(("size", _smaller(check.float_bytes, check.quantized_bytes)))
    if check.speedup is not None:
        rows.append(("speed", f"{check.speedup:.2f} times as fast as float, one thread of this machine"))
    ran = f"runs, {plural(check.samples, 'sample')}" if check.samples else "loads; without data it was not run"
    rows.append(("checked", f"valid, {ran}"))
    screen.pairs(rows)
    for warning in check.warnings:
        screen.line(f"  {screen.style('warning', 'yellow')}  {warning}")
    for note in result.details if verbose else ():
        screen.line(f"  {screen.style('note', 'dim')}  {note}")


def _checked(result: Quantized, check: Verification) -> str:
    if result.backend.at_home:
        return f"valid, runs with optimizations on and off; {plural(check.samples, 'sample')}"
    ran = f"simulated in onnxruntime, {plural(check.samples, 'sample')}" if check.samples else "loads in onnxruntime"
    return f"valid, {ran}"


def _next(result: Quantized) -> list[str]:
    """What to do with the files written: see them in their own runtime, then the vendor's commands."""
    if not result.files or result.backend.at_home:
        return []
    path = shlex.quote(str(result.files[0]))
    return [f"onnxq verify {path} --backend {result.backend.name} --data DATA", *result.next_steps]


def _listed(ops: Iterable[str]) -> str:
    text = counts(ops)
    return f": {text}" if text else ""


def _ops(result: Quantized, names: Iterable[str]) -> list[str]:
    wanted = set(names)
    return [node.op_type for node in result.model.graph.all_nodes() if node.name in wanted]


def _smaller(before: int, after: int) -> str:
    ratio = before / after if after else math.inf
    text = f"{ratio:.1f} times smaller" if ratio >= 1.05 else "not smaller" if ratio <= 1 else "about the same"
    return f"{bytes_text(before)} → {bytes_text(after)}, {text}"


def below_floor(screen: Screen, output: str, sqnr: float, floor: float, suspects: Sequence[TensorErrors]) -> None:
    """Says loudly that a result is bad, and where it goes wrong."""
    screen.line()
    screen.line(
        screen.style(f"BELOW THE FLOOR: {output} has {decibel(sqnr)} dB, {floor:g} dB are asked for", "bold", "red")
    )
    if suspects:
        screen.line("Most is lost at:")
        _drops(screen, suspects)
        name = suspects[0].node or suspects[0].tensor
        screen.line(f"Try --exclude '{name}', --override '{name}=bits=16', another --range, or more data.")
    else:
        screen.line("Try 'onnxq compare' to see where, --act-bits 16, another --range, or more data.")


def calibrated(screen: Screen, source: str, output: str, made: Statistics, size: int, seconds: float) -> None:
    """The summary of ``onnxq calibrate``."""
    _head(screen, f"{source} → {output}", f"{bytes_text(size)}, {seconds:.1f} s")
    rows = [
        ("samples", f"{made.samples} ({len(made.kept)} kept for verification)"),
        ("tensors", f"{len(made.tensors)}"),
    ]
    rows += [("not seen" if not i else "", f"{n}: {why}") for i, (n, why) in enumerate(made.unobservable.items())]
    screen.pairs(rows)
    for warning in made.warnings():
        screen.line(f"  {screen.style('warning', 'yellow')}  {warning}")


def plan(screen: Screen, source: str, made: Plan, *, verbose: bool) -> None:
    """The plan as a table of sites and a summary."""
    _head(screen, f"{source} on {made.backend}")
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
    done = len(made.quantized) + len(made.absorbed)
    ties = sum(site.tied_to is not None for site in made.sites)
    summary = [("quantized", f"{done} of {done + len(made.kept_float)} nodes{_listed(made.quantized.values())}")]
    if made.absorbed:
        summary.append(("absorbed", f"{plural(len(made.absorbed), 'activation function')} into the node before"))
    if ties:
        summary.append(("tied", f"{plural(ties, 'tensor')} sharing the scale of another"))
    screen.pairs(summary + _kept_rows(made.kept_float, verbose))


def findings(screen: Screen, source: str, found: Sequence[Finding]) -> None:
    """Findings, worst first, and a verdict."""
    _head(screen, source)
    colours = {"error": ("bold", "red"), "warning": ("yellow",), "note": ("dim",)}
    for finding in found:
        label = screen.style(finding.level.ljust(7), *colours[finding.level])
        hint = f". {screen.style(finding.hint, 'cyan')}" if finding.hint else ""
        screen.line(f"  {label}  {finding.where}: {finding.what}{hint}")
    errors, warnings = (sum(f.level == level for f in found) for level in ("error", "warning"))
    if errors or warnings:
        parts = [plural(n, word) for n, word in ((errors, "error"), (warnings, "warning")) if n]
        screen.line(screen.style(", ".join(parts), "bold", "red" if errors else "yellow"))
    else:
        screen.line(screen.style("Nothing stands in the way.", "bold", "green"))


def comparison(screen: Screen, made: Comparison, *, everything: bool) -> None:
    """Outputs, the largest drops, and every tensor if asked for."""
    _head(screen, "outputs", plural(made.samples, "sample"))
    _errors_table(screen, "output", made.outputs)
    drops = made.largest_drops(8)
    if drops:
        screen.line()
        _head(screen, "most is lost at", "dB below what the node was given")
        _drops(screen, drops)
    if everything and made.tensors:
        screen.line()
        _head(screen, "tensors", "in the order of the graph; * is quantized itself")
        marked = {f"{'*' if t.quantized else ' '} {t.tensor} ({t.op})": t.errors for t in made.tensors}
        _errors_table(screen, "tensor", marked)
    elif made.tensors:
        screen.line()
        low = min(made.tensors, key=lambda t: t.errors.sqnr)
        screen.line(
            f"{plural(len(made.tensors), 'tensor')} compared, the lowest {decibel(low.errors.sqnr)} dB "
            f"({low.tensor}); --all lists them."
        )


def _errors_table(screen: Screen, title: str, rows: Mapping[str, Errors]) -> None:
    head = (title, "SQNR dB", "centred", "median", "worst", "sample", "cosine", "max error", "of peak")
    cells = []
    for name, e in rows.items():
        if math.isnan(e.sqnr) and not math.isnan(e.agreement):
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


def _drops(screen: Screen, drops: Sequence[TensorErrors]) -> None:
    rows = [(f"{t.drop:.1f}", f"{t.errors.sqnr:.1f}", t.op, t.node or "(input)", t.tensor) for t in drops]
    screen.table(("dB lost", "SQNR dB", "op", "node", "tensor"), rows, right=(0, 1))


def sensitivity(screen: Screen, source: str, plot: str | None, made: Sensitivity, *, everything: bool) -> None:
    """Which layers hurt, worst first: weights, then activations."""
    _head(screen, source, f"{made.backend}, {plural(made.samples, 'sample')}, {made.runs} runs in {made.seconds:.1f} s")
    titles = (("weights", "weights of"), ("activations", "activation"))
    for role, title in titles:
        rows = made.of(role)
        if not rows:
            continue
        listed = rows if everything else rows[:_ROWS]
        own = any(row.local for row in rows)
        head = [title, "op", *(f"{b} bits" for b in made.bits), *(f"own {b}" for b in made.bits if own)]
        cells = []
        for row in listed:
            ops = "" if row.members > 1 or not row.ops else row.ops[0]
            mine = [decibel(row.local[b]) if b in row.local else "-" for b in made.bits if own]
            cells.append([row.name, ops, *(decibel(row.sqnr[b]) for b in made.bits), *mine])
        screen.line()
        screen.table(head, cells, right=range(2, len(head)))
        _more(screen, len(rows) - len(listed))
        for name, table in (("all together", made.together), ("added up", made.added)):
            figures = ", ".join(f"{decibel(table[role][b])} dB at {b} bits" for b in made.bits)
            screen.line(f"  {name}: {figures}")
    screen.line()
    screen.line(
        "SQNR in dB at the worst output when it alone is quantized; own: at the layer's own output. Low is bad."
    )
    if plot:
        screen.line(f"The picture: {plot}")


def shown(screen: Screen, view: ModelView | StatisticsView, *, everything: bool) -> None:
    """A model's quantization, or a statistics file."""
    if isinstance(view, StatisticsView):
        _statistics(screen, view, everything)
    else:
        _model(screen, view, everything)


def _statistics(screen: Screen, view: StatisticsView, everything: bool) -> None:
    s = view.statistics
    _head(screen, view.path, f"statistics, {bytes_text(view.file_bytes)}")
    kept = ", ".join(str(k.index) for k in s.kept)
    screen.pairs([("samples", f"{s.samples}; kept: {kept or 'none'}"), ("model", s.model_digest[:16])])
    screen.line()
    tensors = list(s.tensors.values())
    listed = tensors if everything else tensors[:_ROWS]
    head = ("tensor", "values", "min", "max", "mean", "std")
    rows = [(t.name, f"{t.count:,}", number(t.min), number(t.max), number(t.mean), number(t.std)) for t in listed]
    screen.table(head, rows, right=range(1, 6))
    _more(screen, len(tensors) - len(listed))
    for warning in s.warnings():
        screen.line(f"  {screen.style('warning', 'yellow')}  {warning}")


def _model(screen: Screen, view: ModelView, everything: bool) -> None:
    _head(
        screen,
        view.path,
        f"{bytes_text(view.file_bytes)}, opset {view.opset}" + (f", by {view.producer}" if view.producer else ""),
    )
    rows = [("inputs" if not i else "", f"{n}: {t}") for i, (n, t) in enumerate(view.inputs.items())]
    rows += [("outputs" if not i else "", f"{n}: {t}") for i, (n, t) in enumerate(view.outputs.items())]
    rows.append(("nodes", ", ".join(f"{count} {op}" for op, count in view.ops.items()) or "none"))
    rows.append(("constants", ", ".join(f"{kind} {bytes_text(n)}" for kind, n in view.weight_bytes.items()) or "none"))
    if not view.quantized:
        screen.pairs([*rows, ("quantized", "nothing")])
        return
    by_role = Counter((q.role, q.dtype) for q in view.quantized)
    text = ", ".join(
        f"{count} {dtype} {role if count == 1 else 'biases' if role == 'bias' else role + 's'}"
        for (role, dtype), count in by_role.items()
    )
    screen.pairs([*rows, ("quantized", text)])
    screen.line()
    listed = view.quantized if everything else view.quantized[:_ROWS]
    head = ("tensor", "role", "type", "scale", "zero point", "read by")
    screen.table(head, [_quantized_row(q) for q in listed])
    _more(screen, len(view.quantized) - len(listed))


def _quantized_row(q: QuantizedTensor) -> tuple[str, ...]:
    scale, zero = "computed", "computed"
    if q.scale is not None:
        low, high = q.scale
        scale = number(low) if low == high else f"{number(low)}..{number(high)}"
        scale += f" ({q.scales} on axis {q.axis})" if q.scales > 1 else ""
    if q.zero_point is not None:
        zero = str(q.zero_point[0]) if q.zero_point[0] == q.zero_point[1] else f"{q.zero_point[0]}..{q.zero_point[1]}"
    return q.tensor, q.role, q.dtype, scale, zero, ", ".join(q.readers) or "output"


def _more(screen: Screen, count: int) -> None:
    if count > 0:
        screen.line(screen.style(f"  and {count:,} more (--all)", "dim"))


def backends(screen: Screen, found: Sequence[Backend]) -> None:
    """The table of targets."""
    for backend in found:
        scheme = f"weights {_scheme(backend.weight)}, activations {_scheme(backend.activation)}"
        screen.line(f"{screen.style(backend.name, 'bold')}  {backend.title}")
        rows = [("scheme", scheme), ("writes", backend.artifacts), ("formats", ", ".join(backend.formats))]
        rows += [("verified", backend.verified)] if backend.verified else []
        rows += [("not verified", backend.unverified)] if backend.unverified else []
        screen.pairs(rows)


def _scheme(spec: QuantSpec) -> str:
    sign = "int" if spec.signed else "uint"
    extra = " log" if spec.scheme is Scheme.LOGARITHMIC else " 2^n" if spec.power_of_two else ""
    return f"{sign}{spec.bits}{extra}{' sym' if spec.symmetric and spec.signed else ''}"


def algorithms(screen: Screen, found: Sequence[Algorithm]) -> None:
    """The table of algorithms."""
    rows = [
        (a.NAME, a.STAGE, ", ".join(f"{key}={value}" for key, value in a.PARAMETERS.items()) or "-", a.TITLE)
        for a in found
    ]
    screen.table(("name", "stage", "parameters", "what it does"), rows)


def demo(screen: Screen, result: DemoResult, made: Quantized) -> None:
    """Float and INT8 side by side."""
    _head(screen, "handwritten digits, a CNN", f"quantized in {result.seconds:.1f} s for {made.backend.title}")
    worst = made.verification.worst if made.verification else None
    rows = [
        ("accuracy", f"{result.float_accuracy:.2%}", f"{result.int8_accuracy:.2%}", f"{result.agreement:.1%} agree"),
        ("size", bytes_text(result.float_bytes), bytes_text(result.int8_bytes),
         f"{result.float_bytes / result.int8_bytes:.1f} times smaller"),
        ("batch of 64", f"{result.float_ms:.2f} ms", f"{result.int8_ms:.2f} ms",
         f"{result.float_ms / result.int8_ms:.1f} times as fast"),
        ("SQNR", "", f"{decibel(worst[1].sqnr)} dB" if worst else "-", ""),
    ]  # fmt: skip
    screen.table(("", "float", "int8", ""), rows, right=(1, 2))
    screen.line(f"  {result.digits} digits that neither training nor calibration has seen.")
    if result.output:
        screen.line(f"  The quantized model: {result.output}")
    else:
        screen.line("  Next: onnxq quantize MODEL.onnx --data DATA.npz -o OUT.onnx")
