"""Arithmetic that blows up the noise of 8 bits: a logarithm of a power spectrum, a division by a small norm, the sine
of an angle of many turns.

What stands before such a node (an STFT, a filter bank written as convolutions) looks harmless tensor by tensor, and
ruins the model. It is recognised by running both models on the kept samples: the error in front of the node is small,
behind it the signal is lost. What stands in front is looked at only where the signal behind is lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from itertools import count

import onnx_ir as ir

from onnxq.calibration.roles import spread
from onnxq.calibration.statistics import KeptSample
from onnxq.graph.picking import picking
from onnxq.graph.traverse import all_nodes, subgraphs
from onnxq.graph.values import constant_array
from onnxq.measuring.metrics import ErrorMeter, Errors
from onnxq.measuring.paired import Pair, paired_tensors
from onnxq.options import Options
from onnxq.plan import Plan
from onnxq.quantized import Quantized

__all__ = ["OF_ANGLES", "SUSPECTS", "noise_amplifiers"]

SUSPECTS = frozenset(
    {
        "Cos",
        "Div",
        "Exp",
        "GroupNormalization",
        "InstanceNormalization",
        "LayerNormalization",
        "Log",
        "LpNormalization",
        "MeanVarianceNormalization",
        "Pow",
        "RMSNormalization",
        "Reciprocal",
        "Sin",
        "Sqrt",
        "Sub",
    }
)
"""Operators that may blow up the noise of what they read."""
OF_ANGLES: Container[str] = frozenset({"Cos", "Sin"})
"""Those that a step of more than a turn leaves nothing of: with 8 bits, of angles from -800 to 800."""
_LOST = 12.0
"""dB, mean removed: below this the signal behind a node counts as lost."""
_DROP = 9.0
"""dB that the node itself must have lost."""
_SAMPLES = 4
_USUAL = 1e6
"""Numbers up to this, and down to its inverse, overflow nothing that they are divided by or taken from."""
_LONGEST = 64
"""Nodes that are looked at in the place of one."""
_UNKNOWN = 1 << 20
"""Elements that a tensor of unknown size is taken to have."""


def noise_amplifiers(
    model: ir.Model,
    quantized: Quantized,
    samples: Sequence[KeptSample],
    options: Options,
    sizes: Mapping[str, int] | None = None,
    *,
    suspected: Container[str] = SUSPECTS,
    advance: Callable[[int], None] = lambda runs: None,
) -> dict[str, str]:
    """Quantized nodes in front of nodes that amplify their noise, and such nodes themselves.

    Args:
        model: the float model.
        quantized: of it, rendered only where there are suspects. It is run with onnxruntime's graph optimizations where
            it is made for onnxruntime: other forms they were not made for, and onnxruntime 1.31 aborts the process
            where it moves a DequantizeLinear into an If behind a Reshape.
        samples: a few of them are run, spread over all.
        options: execution providers and the library of custom operators; with placement ``all`` only nodes count behind
            which there are infinities or NaN where the float model has numbers, as of a division by what rounds to 0,
            or of its logarithm.
        sizes: tensor name → number of elements in a sample, as far as it is known.
        suspected: operators that are looked at.
        advance: told how many runs of both models are done.

    Returns:
        Node name → reason to keep it float.
    """
    plan = quantized.plan
    suspects = _suspects(model, plan, suspected)
    if not suspects or not samples:
        return {}
    rendered = quantized.with_tensors()
    now = {node.name: node for node in all_nodes(rendered)}
    pairs = {node: _pairs(node, now[node.name]) for node in suspects if node.name in now}
    done = count(1)

    def measured(wanted: Sequence[Pair]) -> dict[Pair, Errors]:
        at_home = quantized.backend.at_home
        return _errors(model, rendered, wanted, samples, sizes or {}, options, at_home, lambda _: advance(next(done)))

    least = _LOST if options.placement != "all" else -math.inf
    error = _errors_around(pairs.values(), measured, least)
    found: dict[str, str] = {}
    seen: set[ir.Node] = set()
    for node, (*read, written) in pairs.items():
        if (
            written not in error
            or (loss := _loss([error[p] for p in read if p in error], error[written], least)) is None
        ):
            continue
        why = f"{node.op_type} '{node.name}' after it amplifies quantization noise ({loss})"
        found.update(dict.fromkeys(_ahead(node, plan, seen), why))
        if node.name and node.name in plan.quantized:
            found[node.name] = f"it amplifies quantization noise ({loss})"
    return found


def _suspects(model: ir.Model, plan: Plan, suspected: Container[str]) -> list[ir.Node]:
    """Nodes of some operators that read what quantized nodes made, and may amplify its noise."""
    behind = _behind_quantized(model.graph, plan, picking(model).nodes)
    return [
        node
        for node in all_nodes(model)
        if node.op_type in suspected and node.outputs[0].dtype is ir.DataType.FLOAT and node in behind
        if not _only_scales(node)
    ]


def _errors_around(
    pairs: Iterable[Sequence[Pair]], measured: Callable[[Sequence[Pair]], dict[Pair, Errors]], least: float
) -> dict[Pair, Errors]:
    """Errors of what nodes write, and of what those read whose results are poor.

    Args:
        pairs: of each node, what it reads and last what it writes.
        measured: measures some of them.
        least: dB below which a result is poor.
    """
    found = list(pairs)
    error = measured([written for *_, written in found])
    poor = [read for *read, written in found if written in error and _is_poor(error[written], least)]
    if more := list(dict.fromkeys(pair for read in poor for pair in read if pair not in error)):
        error |= measured(more)
    return error


def _loss(read: Sequence[Errors], written: Errors, least: float) -> str | None:
    """What a node makes of the signal that it reads, in words, where it loses it.

    Args:
        read: errors of what it reads, as far as they are known.
        written: of what it writes.
        least: dB below which a signal counts as lost.
    """
    if not read:
        return None
    if written.broken and not any(errors.broken for errors in read):
        return "to infinite values or NaN"
    before, after = min(errors.sqnr_centred for errors in read), written.sqnr_centred
    return f"from {before:.0f} dB to {after:.0f} dB" if after < least and before - after >= _DROP else None


def _only_scales(node: ir.Node) -> bool:
    """Whether a node divides all numbers by one, or takes one from all: the noise is as large against the signal."""
    if node.op_type not in ("Div", "Sub") or len(node.inputs) != 2:
        return False
    by = constant_array(node.inputs[1])
    return by is not None and by.size == 1 and 1 / _USUAL <= abs(float(by.reshape(-1)[0])) <= _USUAL


def _pairs(node: ir.Node, now: ir.Node) -> list[Pair]:
    """The tensors that a node reads, then the one it writes: in the float model, and in the rendered one."""
    alike = now.op_type == node.op_type and len(now.inputs) == len(node.inputs)
    read = now.inputs if alike else [_read_by_chain(now, value) for value in node.inputs]
    values = zip((*node.inputs, node.outputs[0]), (*read, now.outputs[0]), strict=True)
    return [
        (a.name or "", b.name or "")
        for a, b in values
        if a is not None and b is not None and a.producer() is not None and a.dtype is ir.DataType.FLOAT
    ]


def _read_by_chain(last: ir.Node, value: ir.Value | None) -> ir.Value | None:
    """What nodes that were written in the place of one read as a tensor of its, quantized or not; None: nothing.

    Args:
        last: of these nodes.
        value: the tensor, in the float model.
    """
    waiting, seen = [last], {last}
    while waiting and len(seen) < _LONGEST:
        for read in waiting.pop(0).inputs:
            maker = read.producer() if read is not None else None
            given = read
            if maker is not None and maker.op_type == "DequantizeLinear" and maker.inputs[0] is not None:
                quantizer = maker.inputs[0].producer()
                given = quantizer.inputs[0] if quantizer is not None else read
            if value is not None and given is not None and given.name == value.name:
                return read
            if maker is not None and maker not in seen:
                seen.add(maker)
                waiting.append(maker)
    return None


def _behind_quantized(graph: ir.Graph, plan: Plan, but: Container[ir.Node]) -> set[ir.Node]:
    """The nodes of a graph, and of those inside of its nodes, that depend on quantized ones; none of ``but``."""
    behind: set[ir.Node] = set()

    def walk(graph: ir.Graph) -> None:
        for node in graph:
            if node in but:
                continue
            for inner in subgraphs(node):
                walk(inner)
            if any(producer in behind or producer.name in plan.quantized for producer in _producers(node)):
                behind.add(node)

    walk(graph)
    return behind


def _ahead(node: ir.Node, plan: Plan, seen: set[ir.Node]) -> list[str]:
    """Quantized nodes that a node depends on.

    Args:
        node: the node.
        plan: where the model is quantized.
        seen: nodes that are passed over, as are those that they depend on; all that are come upon are added.
    """
    stack = [node]
    found: list[str] = []
    while stack:
        for producer in _producers(stack.pop()):
            if producer not in seen:
                seen.add(producer)
                stack.append(producer)
                if producer.name and producer.name in plan.quantized:
                    found.append(producer.name)
    return found


def _producers(node: ir.Node) -> Iterator[ir.Node]:
    """What makes the inputs of a node, and what its graphs give back."""
    for value in (*node.inputs, *(end for graph in subgraphs(node) for end in graph.outputs)):
        producer = value.producer() if value is not None else None
        if producer is not None:
            yield producer


def _is_poor(written: Errors, least: float) -> bool:
    """Whether what a node writes is so poor that it matters what it read: not finite, or below ``least`` dB."""
    return bool(written.broken) or written.sqnr_centred < least


def _errors(
    model: ir.Model,
    rendered: ir.Model,
    pairs: Sequence[Pair],
    samples: Sequence[KeptSample],
    sizes: Mapping[str, int],
    options: Options,
    optimize: bool,
    advance: Callable[[int], None],
) -> dict[Pair, Errors]:
    """What each pair of tensors that can be observed differs by."""
    known = {name: 4 * sizes.get(name, _UNKNOWN) for name, _ in pairs}
    meters: dict[Pair, ErrorMeter] = {}
    runs = 0
    for group in paired_tensors(model, rendered, pairs, known, optimize=optimize, **options.session):
        for sample in spread(samples, _SAMPLES):
            for pair, expected, got in group.run(sample.feeds):
                meters.setdefault(pair, ErrorMeter()).update(expected, got, sample.place)
            runs += 1
            advance(runs)
    return {pair: meter.result() for pair, meter in meters.items()}
