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
from onnxq.graph.traverse import all_nodes
from onnxq.metrics import ErrorMeter
from onnxq.plan import Plan
from onnxq.session import Session

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
    providers: Sequence[str] | None = None,
    custom_op_library: str | None = None,
) -> dict[str, str]:
    """Quantized nodes in front of float nodes that amplify their noise.

    Args:
        model: the float model.
        render: gives the quantized model, tensors named as in the float one; called only where there are suspects.
        plan: where it is quantized.
        samples: samples to run, a few are enough.
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
    present = {v.name for node in all_nodes(rendered) for v in node.outputs}
    tensors = [
        value.name or ""
        for node, _ in suspects
        for value in (*node.inputs, *node.outputs)
        if value is not None and value.producer() and value.dtype is ir.DataType.FLOAT and value.name in present
    ]
    tensors = list(dict.fromkeys(tensors))
    error = _errors(model, rendered, tensors, samples, providers, custom_op_library)
    found: dict[str, str] = {}
    for node, ahead in suspects:
        behind = error.get(node.outputs[0].name or "")
        before = [error[v.name] for v in node.inputs if v is not None and v.name in error]
        if behind is None or not before or not behind < _LOST or not min(before) - behind >= _DROP:
            continue
        why = (
            f"{node.op_type} '{node.name}' behind it amplifies quantization noise "
            f"(from {min(before):.0f} dB to {behind:.0f} dB)"
        )
        for name in ahead:
            found.setdefault(name, why)
    return found


def _ahead(node: ir.Node, plan: Plan) -> list[str]:
    """Quantized nodes that a node depends on."""
    seen: set[ir.Node] = set()
    stack = [node]
    found: list[str] = []
    while stack:
        for value in stack.pop().inputs:
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
    tensors: Sequence[str],
    samples: Sequence[KeptSample],
    providers: Sequence[str] | None,
    custom_op_library: str | None,
) -> dict[str, float]:
    """Mean-removed SQNR of each tensor, dB."""
    pairs = []
    after = {v.name for node in all_nodes(rendered) for v in node.outputs}
    for which in (model, rendered):
        seen = {t: f"{t}_dequantized" if which is rendered and f"{t}_dequantized" in after else t for t in tensors}
        tapped, shown = tap(which, list(seen.values()))
        names = {t: shown[s] for t, s in seen.items() if s in shown}
        pairs.append((Session(tapped, providers=providers, custom_op_library=custom_op_library), names))
    (reference, theirs), (result, ours) = pairs
    common = [t for t in tensors if t in theirs and t in ours]
    meters = {t: ErrorMeter() for t in common}
    for sample in samples[:_SAMPLES]:
        a = reference.run(sample.feeds, [theirs[t] for t in common])
        b = result.run(sample.feeds, [ours[t] for t in common])
        for t in common:
            meters[t].update(a[theirs[t]], b[ours[t]], sample.index)
    return {t: meter.result().sqnr_centred for t, meter in meters.items()}
