"""Float arithmetic that blows up the noise of 8 bits: a logarithm of a power spectrum, a division by a small norm.

What stands before such a node (an STFT, a filter bank written as convolutions) looks harmless tensor by tensor, and
ruins the model. It is recognised by running both models on the kept samples: the error in front of the node is small,
behind it the signal is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from onnxq.calibration.statistics import KeptSample
from onnxq.calibration.taps import tap
from onnxq.graph.traverse import all_nodes, subgraphs
from onnxq.measuring.metrics import ErrorMeter, Errors
from onnxq.ort.session import open_anyhow
from onnxq.plan import Plan

__all__ = ["noise_amplifiers"]

_SUSPECTS = frozenset(
    {
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
        "Sqrt",
        "Sub",
    }
)
_LOST = 12.0
"""dB, mean removed: below this the signal behind a node counts as lost."""
_DROP = 9.0
"""dB that the node itself must have lost."""
_SAMPLES = 4


def noise_amplifiers(
    model: ir.Model,
    render: Callable[[], ir.Model],
    plan: Plan,
    samples: Sequence[KeptSample],
    *,
    broken: bool = False,
    optimize: bool = True,
    providers: Sequence[str] | None = None,
    custom_op_library: str | None = None,
) -> dict[str, str]:
    """Quantized nodes in front of float nodes that amplify their noise.

    Args:
        model: the float model.
        render: gives the quantized model, tensors named as in the float one; called only where there are suspects.
        plan: where it is quantized.
        samples: samples to run, a few are enough.
        broken: only where there are infinities or NaN and the float model has numbers, as of a division by what
            rounds to 0, or of its logarithm.
        optimize: run the quantized model with onnxruntime's graph optimizations, which are made for its own forms:
            onnxruntime 1.31 aborts the process where it moves a DequantizeLinear into an If behind a Reshape.
        providers: execution providers of onnxruntime.
        custom_op_library: shared library with the model's custom operators.

    Returns:
        Node name → reason to keep it float.
    """
    suspects = [
        (node, ahead)
        for node in all_nodes(model)
        if node.op_type in _SUSPECTS and node.outputs[0].dtype is ir.DataType.FLOAT and (ahead := _ahead(node, plan))
    ]
    if not suspects or not samples:
        return {}
    rendered = render()
    now = {node.name: node for node in all_nodes(rendered)}
    pairs = {node: _pairs(node, now[node.name]) for node, _ in suspects if node.name in now}
    all_pairs = list(dict.fromkeys(pair for found in pairs.values() for pair in found))
    error = _errors(model, rendered, all_pairs, samples, optimize, providers, custom_op_library)
    found: dict[str, str] = {}
    for node, ahead in suspects:
        *read, written = pairs.get(node) or [("", "")]
        if written not in error or not any(pair in error for pair in read):
            continue
        behind, before = error[written].sqnr_centred, [error[pair].sqnr_centred for pair in read if pair in error]
        breaks = bool(error[written].broken) and not any(error[pair].broken for pair in read if pair in error)
        drowns = behind < _LOST and min(before) - behind >= _DROP and not broken
        if not breaks and not drowns:
            continue
        loss = "to infinite values or NaN" if breaks else f"from {min(before):.0f} dB to {behind:.0f} dB"
        why = f"{node.op_type} '{node.name}' behind it amplifies quantization noise ({loss})"
        for name in ahead:
            found.setdefault(name, why)
    return found


def _pairs(node: ir.Node, now: ir.Node) -> list[tuple[str, str]]:
    """The tensors that a node reads, then the one it writes: in the float model, and in the rendered one."""
    values = zip((*node.inputs, node.outputs[0]), (*now.inputs, now.outputs[0]), strict=True)
    return [
        (a.name or "", b.name or "")
        for a, b in values
        if a is not None and b is not None and a.producer() is not None and a.dtype is ir.DataType.FLOAT
    ]


def _ahead(node: ir.Node, plan: Plan) -> list[str]:
    """Quantized nodes that a node depends on."""
    seen: set[ir.Node] = set()
    stack = [node]
    found: list[str] = []
    while stack:
        current = stack.pop()
        for value in (*current.inputs, *(end for graph in subgraphs(current) for end in graph.outputs)):
            producer = value.producer() if value is not None else None
            if producer is not None and producer not in seen:
                seen.add(producer)
                stack.append(producer)
                if producer.name and producer.name in plan.quantized:
                    found.append(producer.name)
    return found


def _errors(
    model: ir.Model,
    rendered: ir.Model,
    pairs: Sequence[tuple[str, str]],
    samples: Sequence[KeptSample],
    optimize: bool,
    providers: Sequence[str] | None,
    custom_op_library: str | None,
) -> dict[tuple[str, str], Errors]:
    """What each pair of tensors that can be observed differs by."""
    sessions, shown = [], []
    parts = ((model, [a for a, _ in pairs], True), (rendered, [b for _, b in pairs], optimize))
    for which, tensors, how in parts:
        tapped, names = tap(which, list(dict.fromkeys(tensors)))
        sessions.append(open_anyhow(tapped, optimize=how, providers=providers, custom_op_library=custom_op_library))
        shown.append(names)
    meters = {pair: ErrorMeter() for pair in pairs if pair[0] in shown[0] and pair[1] in shown[1]}
    for sample in samples[:_SAMPLES]:
        reference, result = (session.run(sample.feeds) for session in sessions)
        for (a, b), meter in meters.items():
            meter.update(reference[shown[0][a]], result[shown[1][b]], sample.index)
    return {pair: meter.result() for pair, meter in meters.items()}
