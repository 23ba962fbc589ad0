"""Empirical bias correction: measure the mean of every output channel in the quantized model, and take out its shift.

Unlike the analytic form this sees what the quantization of the layers before does, of activations too, and needs no
weights (Nagel et al., Data-Free Quantization Through Weight Equalization and Bias Correction, 2019, appendix D).
A layer is corrected when those before it are: layers that do not depend on each other in one run, the others one after
the other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.algorithm import Draft
from onnxq.algorithms.biases.own_biases import give_biases, remove_zero_biases
from onnxq.algorithms.common.quantized_layer import QuantizedLayer, is_behind, quantized_layers
from onnxq.calibration.capture import capture
from onnxq.calibration.roles import spread
from onnxq.calibration.statistics import KeptSample
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import constant_array
from onnxq.measuring.simulation import output_sqnr
from onnxq.numbers import fit_biases

__all__ = ["correct_empirically"]

Doubles = NDArray[np.float64]

_SAMPLES = 8
"""Samples that means are measured on, of each kind; every one has many positions."""

_LEAST_GAIN = 0.25
"""dB by which the model's outputs must come closer: less is chance on so few samples."""


def correct_empirically(draft: Draft, runs: int) -> str:
    """Take out the measured mean shift of every output channel of the layers that have biases or can have one.

    A correction that does not bring the means of a layer's outputs on samples held back closer to the float model's is
    undone, and all of them where the outputs of the model do not come closer on these by a quarter of a dB.

    Args:
        draft: changed in place.
        runs: at most so many times the quantized model is run over the samples; where more layers depend on each other,
            every second one, third one … is corrected.

    Returns:
        What was done.
    """
    before = (draft.model.clone(), draft.plan, dict(draft.numbers))
    fitting, held = spread(draft.fitting, _SAMPLES), spread(draft.held, _SAMPLES)
    score = output_sqnr(draft.quantized(), held, draft.options)
    added = give_biases(draft)
    fit_biases(draft.model, draft.plan, draft.numbers)
    layers = [layer for layer in quantized_layers(draft.model, draft.plan, stored=True) if layer.bias is not None]
    corrected, undone = _correct(draft, layers, fitting, held, runs)
    remove_zero_biases(draft, added)
    after = output_sqnr(draft.quantized(), held, draft.options) if corrected else -np.inf
    figures = f"{after:.1f} dB on samples held back, {score:.1f} dB without"
    if after > score + _LEAST_GAIN:
        worse = f"; {undone} undone where the means did not come closer" if undone else ""
        return f"{corrected} layers by measured means, {figures}{worse}"
    draft.model, draft.plan, numbers = before
    draft.numbers.clear()
    draft.numbers.update(numbers)
    if not corrected:
        return f"no layer's means came closer on samples held back, of {undone}"
    return f"all {corrected} layers undone: {figures}"


def _correct(
    draft: Draft,
    layers: Sequence[QuantizedLayer],
    fitting: Sequence[KeptSample],
    held: Sequence[KeptSample],
    runs: int,
) -> tuple[int, int]:
    """Correct the biases of layers, level by level; how many were, and how many would not have come closer.

    Args:
        draft: changed in place.
        layers: with biases of their own, in the order of the graph.
        fitting: samples that shifts are measured on.
        held: samples that tell whether the means come closer.
        runs: of the quantized model over the samples, at most.
    """
    samples = [*fitting, *held]
    wanted = _means(draft, layers, samples, quantized=False)
    levels = _levels(draft, layers)
    levels = levels[:: max(1, -(-len(levels) // max(1, runs)))]
    corrected = undone = 0
    with draft.reporter.phase("bias correction", total=len(levels), unit="runs") as advance:
        for done, level in enumerate(levels, start=1):
            got = _means(draft, level, samples, quantized=True)
            for layer in level:
                if layer.name not in got or layer.name not in wanted:
                    continue
                shift = got[layer.name] - wanted[layer.name]
                learnt, judged = shift[: len(fitting)].mean(axis=0), shift[len(fitting) :].mean(axis=0)
                if np.isfinite(shift).all() and np.square(judged - learnt).sum() < np.square(judged).sum():
                    _add(layer, -learnt)
                    corrected += 1
                else:
                    undone += 1
            fit_biases(draft.model, draft.plan, draft.numbers)
            advance(done)
    return corrected, undone


def _levels(draft: Draft, layers: Sequence[QuantizedLayer]) -> list[list[QuantizedLayer]]:
    """Consecutive layers none of which depends on another one of its level."""
    levels: list[list[QuantizedLayer]] = []
    for layer in layers:
        if levels and not is_behind(layer, levels[-1], draft.model.graph):
            levels[-1].append(layer)
        else:
            levels.append([layer])
    return levels


def _means(
    draft: Draft, layers: Sequence[QuantizedLayer], samples: Sequence[KeptSample], *, quantized: bool
) -> dict[str, Doubles]:
    """Layer → mean of each output channel, a row a sample; layers whose output cannot be observed are missing."""
    model = draft.quantized().with_tensors() if quantized else draft.reference
    shown = _shown(layers, model, quantized=quantized)
    found: dict[str, list[Doubles]] = {}
    for group, runs in capture(model, list(shown.values()), samples, options=draft.options, sizes=draft.sizes):
        inside = [layer for layer in layers if shown.get(layer.name) in group]
        for arrays in runs:
            for layer in inside:
                values = arrays[shown[layer.name]]
                places = layer.array().ndim - 1 if layer.node.op_type == "Conv" else 1
                axis = values.ndim - places  # a Loop or Scan collects with one more axis in front
                others = tuple(a for a in range(values.ndim) if a != axis)
                if values.size:
                    found.setdefault(layer.name, []).append(values.mean(axis=others, dtype=np.float64))
    return {name: np.stack(means) for name, means in found.items() if len(means) == len(samples)}


def _shown(layers: Sequence[QuantizedLayer], model: ir.Model, *, quantized: bool) -> dict[str, str]:
    """Layer → the tensor that a model shows its output in, with its bias."""
    if not quantized:
        there = {v.name for node in all_nodes(model) for v in node.outputs}
        return {layer.name: name for layer in layers if (name := _last(layer).outputs[0].name or "") in there}
    # by node: a tensor of the same name may be what the quantizer behind it gives
    written = {node.name or "": node.outputs[0].name or "" for node in all_nodes(model)}
    return {layer.name: written[name] for layer in layers if (name := _last(layer).name or "") in written}


def _last(layer: QuantizedLayer) -> ir.Node:
    """The node that adds the bias."""
    return next(iter(layer.node.outputs[0].uses())).node if layer.node.op_type == "MatMul" else layer.node


def _add(layer: QuantizedLayer, change: Doubles) -> None:
    now = constant_array(layer.bias)
    assert now is not None
    layer.set_bias(now.astype(np.float64).reshape(-1) + change)
