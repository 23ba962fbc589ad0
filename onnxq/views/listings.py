"""How it looks what there is: a file's content, the targets, the algorithms, the demonstration."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from onnxq.algorithms.common.parameter_help import parameter_help
from onnxq.backend import Backend
from onnxq.console.terminal import Screen, bytes_text, decibels, number
from onnxq.quantized import Quantized
from onnxq.render.reading.quantized_tensor import QuantizedTensor, kinds_said
from onnxq.show import ModelView, StatisticsView
from onnxq.spec import QuantSpec, Scheme
from onnxq.views.parts import (
    ROWS,
    heading,
    labelled,
    more_line,
    smaller,
    warning_lines,
)

if TYPE_CHECKING:
    from onnxq.algorithm import Algorithm
    from onnxq.demo.run import DemoResult

__all__ = ["algorithms", "algorithms_in_detail", "backends", "demo", "shown"]

_TEXT = 100
"""Columns of a sentence that is longer than a line."""
_STAGES = {
    "float": "changes the float model before it is planned",
    "options": "chooses options by the data, before the model is planned",
    "numbers": "changes weights, biases and scales of the planned model",
    "model": "a pipeline of its own, from the model to the file: it runs alone",
}


def shown(screen: Screen, view: ModelView | StatisticsView, *, everything: bool) -> None:
    """A model's quantization, or a statistics file."""
    if isinstance(view, StatisticsView):
        _statistics(screen, view, everything)
    else:
        _model(screen, view, everything)


def _statistics(screen: Screen, view: StatisticsView, everything: bool) -> None:
    s = view.statistics
    heading(screen, view.path, f"statistics, {bytes_text(view.file_bytes)}")
    kept = ", ".join(str(k.place) for k in s.kept)
    screen.pairs([("samples", f"{s.samples}; kept: {kept or 'none'}"), ("model", s.model_digest[:16])])
    screen.line()
    tensors = list(s.tensors.values())
    listed = tensors if everything else tensors[:ROWS]
    head = ("tensor", "values", "min", "max", "mean", "std")
    rows = [(t.name, f"{t.count:,}", number(t.min), number(t.max), number(t.mean), number(t.std)) for t in listed]
    screen.table(head, rows, right=range(1, 6))
    more_line(screen, len(tensors) - len(listed))
    warning_lines(screen, s.warnings())


def _model(screen: Screen, view: ModelView, everything: bool) -> None:
    heading(
        screen,
        view.path,
        f"{bytes_text(view.file_bytes)}, opset {view.opset}" + (f", by {view.producer}" if view.producer else ""),
    )
    rows = labelled("inputs", (f"{name}: {kind}" for name, kind in view.inputs.items()))
    rows += labelled("outputs", (f"{name}: {kind}" for name, kind in view.outputs.items()))
    rows.append(("nodes", ", ".join(f"{count} {op}" for op, count in view.ops.items()) or "none"))
    rows.append(("constants", ", ".join(f"{kind} {bytes_text(n)}" for kind, n in view.weight_bytes.items()) or "none"))
    if not view.quantized:
        screen.pairs([*rows, ("quantized", "nothing")])
        return
    screen.pairs([*rows, ("quantized", kinds_said(view.quantized))])
    screen.line()
    listed = view.quantized if everything else view.quantized[:ROWS]
    head = ("tensor", "role", "type", "scale", "zero point", "read by")
    screen.table(head, [_quantized_row(q) for q in listed])
    more_line(screen, len(view.quantized) - len(listed))


def _quantized_row(q: QuantizedTensor) -> tuple[str, ...]:
    scale, zero = "computed", "computed"
    if q.scale is not None:
        low, high = q.scale
        scale = number(low) if low == high else f"{number(low)}..{number(high)}"
        scale += f" ({q.scales} on axis {q.axis})" if q.scales > 1 else ""
    if q.zero_point is not None:
        zero = str(q.zero_point[0]) if q.zero_point[0] == q.zero_point[1] else f"{q.zero_point[0]}..{q.zero_point[1]}"
    readers = [*q.readers, *(["output"] if q.output else [])]
    return q.tensor, q.role, q.dtype, scale, zero, ", ".join(readers) or "-"


def backends(screen: Screen, found: Sequence[Backend]) -> None:
    """The table of targets."""
    for backend in found:
        of_data = "int8, in the range of each run" if backend.weights_alone else _scheme(backend.activation)
        scheme = f"weights {_scheme(backend.weight)}, activations {of_data}"
        screen.line(f"{screen.style(backend.name, 'bold')}  {backend.title}")
        rows = [("scheme", scheme), ("writes", backend.artifacts), ("formats", ", ".join(backend.formats))]
        rows += [("verified", backend.verified)] if backend.verified else []
        rows += [("not verified", backend.unverified)] if backend.unverified else []
        screen.pairs(rows)


def _kind(spec: QuantSpec) -> str:
    """The numbers that a tensor is stored in, e.g. ``int8``."""
    kind = "float" if spec.scheme is Scheme.FLOAT8 else "int" if spec.signed else "uint"
    return f"{kind}{spec.bits}"


def _scheme(spec: QuantSpec) -> str:
    extra = " log" if spec.scheme is Scheme.LOGARITHMIC else " 2^n" if spec.power_of_two else ""
    return f"{_kind(spec)}{extra}{' sym' if spec.symmetric and spec.signed else ''}"


def algorithms(screen: Screen, found: Sequence[Algorithm]) -> None:
    """The table of algorithms."""
    screen.table(("name", "stage", "what it does"), [(a.NAME, a.STAGE, a.TITLE) for a in found])
    screen.line("  onnxq algorithms NAME says what its parameters mean.")


def algorithms_in_detail(screen: Screen, found: Sequence[Algorithm]) -> None:
    """Algorithms with their parameters: ``KEY=DEFAULT``, what it means and the values that it takes."""
    for algorithm in found:
        name, said = algorithm.NAME, parameter_help(algorithm)
        screen.line(f"{screen.style(name, 'bold')}  {algorithm.TITLE}")
        rows = [("stage", f"{algorithm.STAGE}: {_STAGES.get(algorithm.STAGE, '')}")]
        rows.append(("use", f"--algorithm {name}{':KEY=VALUE,KEY=VALUE' if said else ''}"))
        for key, value in algorithm.PARAMETERS.items():
            lines = textwrap.wrap(said[key], _TEXT) or [""]
            rows += [(f"{key}={_setting(value)}", lines[0]), *(("", line) for line in lines[1:])]
        screen.pairs(rows)


def _setting(value: object) -> str:
    """A value as ``--algorithm`` takes it."""
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def demo(screen: Screen, result: DemoResult, made: Quantized) -> None:
    """Float and INT8 side by side."""
    heading(screen, "handwritten digits, a CNN", f"quantized in {result.seconds:.1f} s for {made.backend.title}")
    worst = made.verification.worst if made.verification else None
    rows = [
        ("accuracy", f"{result.float_accuracy:.2%}", f"{result.int8_accuracy:.2%}", f"{result.agreement:.1%} agree"),
        ("size", bytes_text(result.float_bytes), bytes_text(result.int8_bytes),
         smaller(result.float_bytes, result.int8_bytes).partition(", ")[2]),
    ]  # fmt: skip
    if result.float_ms is not None and result.int8_ms is not None:
        times = f"{result.float_ms / result.int8_ms:.1f} times as fast"
        rows.append(("batch of 64", f"{result.float_ms:.2f} ms", f"{result.int8_ms:.2f} ms", times))
    rows.append(("SQNR", "", decibels(worst[1].sqnr) if worst else "-", ""))
    screen.table(("", "float", _kind(made.backend.weight), ""), rows, right=(1, 2))
    screen.line(f"  {result.digits} digits that neither training nor calibration has seen.")
    if result.output:
        screen.line(f"  The quantized model: {result.output}")
    else:
        screen.line("  Next: onnxq quantize MODEL.onnx --data DATA.npz -o OUT.onnx")
