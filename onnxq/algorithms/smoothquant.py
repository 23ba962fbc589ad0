"""SmoothQuant: move the outliers of an activation's channels into the weights that read it.

``X W = (X / s) (s W)`` for a positive scale s of each input channel (Xiao et al., SmoothQuant: Accurate and Efficient
Post-Training Quantization for Large Language Models, 2022, equation 4)::

    s_j = max|X_j|^alpha / max|W_j|^(1 - alpha)

alpha is chosen for all layers that share an input, by the error of their quantized products on some samples, and the
gain is checked on others. The division goes into the normalization or layer that makes the input where nothing else
reads it, else into a Mul of its own, where that is worth it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxq.algorithm import FloatDraft
from onnxq.algorithms.channels.divide import Division, Divisor, divide, insert_division
from onnxq.algorithms.channels.pairs import scale_input
from onnxq.algorithms.channels.product_error import Seen, captured, product_errors
from onnxq.algorithms.common.keep_what_helps import Outcome, keep_what_helps
from onnxq.algorithms.common.quantized_layer import QuantizedLayer, quantized_layers
from onnxq.calibration.moved import Move
from onnxq.calibration.roles import spread
from onnxq.errors import OptionError
from onnxq.graph.layer import Channels, Refusal, as_layer
from onnxq.plan import Edge, Plan, Site
from onnxq.spec import QuantSpec

__all__ = ["HELP", "NAME", "PARAMETERS", "STAGE", "TITLE", "apply", "check", "smoothing_scale"]

NAME = "smoothquant"
TITLE = "move the outliers of an activation's channels into the weights that read it"
STAGE = "float"
PARAMETERS: Mapping[str, object] = {"alpha": 0.0, "insert": 1.0}
HELP: Mapping[str, str] = {
    "alpha": "how much of an outlier moves from the activation into the weights, 0 to 1; 0 chooses for each input, by "
    "the error on samples",
    "insert": "dB that the layers must gain where smoothing adds a Mul to the model, 0 or more",
}

_ALPHAS = (0.15, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
_COMMON = (0.5, 0.7, 0.8, 0.9)
"""Of these, one for all inputs is tried as well: the product of one layer does not tell all."""
_SAMPLES = 8
_FOLDED = 0.1
"""dB that smoothing must gain where it costs nothing at run time."""
_SMALLEST = 1e-5
"""Of the largest weight: what smaller ones are taken as."""


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """Quantized layers that read one tensor through one quantizer.

    Attributes:
        data: the tensor.
        layers: in the order of the graph.
        axis: of its channels, 1 or -1.
        spec: how it is quantized.
        weights: how the weight of each layer is quantized.
        division: how it can be divided; None where that takes a Mul of its own.
    """

    data: ir.Value
    layers: tuple[QuantizedLayer, ...]
    axis: int
    spec: QuantSpec
    weights: tuple[QuantSpec, ...]
    division: Division | None

    def errors(self, seen: Seen, scale: Channels) -> tuple[float, float]:
        """Noise over signal of the products with the input divided by a scale, see :func:`product_errors`."""
        return product_errors(self.layers, self.spec, self.weights, seen, scale)


@dataclass(frozen=True, slots=True, eq=False)
class _Smoothing:
    """Division of a tensor by ``scale`` on its way to some nodes, whose weights make up for it."""

    tensor: str
    nodes: tuple[str, ...]  # in the order of the graph
    scale: Channels
    axis: int
    division: Division | None
    gain: float
    error: float

    def apply(self, draft: FloatDraft) -> dict[str, Move]:
        """Do it."""
        lookup = draft.lookup()
        namer, nodes = lookup.namer, [lookup.nodes[name] for name in self.nodes]
        data = nodes[0].inputs[0]
        assert data is not None
        if self.division is None:
            made = insert_division(data, nodes, self.scale, self.axis, namer)
            changed = {made.outputs[0].name or "": data.name or ""}
            draft.keep_float[made.name or ""] = "takes outliers out of the input of quantized layers"
        else:
            divide(lookup, self.division, self.scale, self.axis)
            changed = {name: name for name in self.division.changed}
        for node in nodes:
            layer = as_layer(node)
            assert layer is not None
            scale_input(layer, self.scale, namer)
        return {name: Move(source, self.scale) for name, source in changed.items()}


def check(alpha: float = 0.0, insert: float = 1.0) -> None:
    """Refuse parameters out of range.

    Raises:
        OptionError: alpha is not from 0 to 1, or ``insert`` is negative.
    """
    if not 0.0 <= alpha <= 1.0:
        raise OptionError(f"alpha is {alpha:g}, not from 0 to 1", where=NAME, hint="Leave it out to have it chosen")
    if not insert >= 0.0:
        raise OptionError(f"insert is {insert:g} dB, less than 0", where=NAME)


def apply(draft: FloatDraft, alpha: float = 0.0, insert: float = 1.0) -> None:
    """Smooth the inputs of matrix products and 1x1 convolutions, and undo what does not help on samples held back.

    Args:
        draft: changed in place.
        alpha: the exponent; 0 chooses one for each input.
        insert: dB that layers must gain where a Mul has to be put in front of them.
    """
    if not draft.statistics.kept:
        draft.notes.append("smoothquant: nothing done, the statistics hold no samples")
        return
    skipped: Counter[str] = Counter()
    by_alpha, same = _found(draft, (alpha,) if alpha else _ALPHAS, insert, skipped)
    sets = [[min(found.values(), key=lambda s: s.error) for found in by_alpha]]
    if not alpha:
        sets += [[found[common] for found in by_alpha if common in found] for common in _COMMON]
    outcome = keep_what_helps(draft, sets[0], *(part for part in sets[1:] if len(sets[0]) > 1))
    changes = sets[outcome.chosen]
    kept = [changes[i] for i in outcome.kept]
    said = _said(kept, outcome)
    said += f"; {same} inputs left, no gain there" if same else ""
    if kept and len(sets) > 1:
        said += f", alpha {_COMMON[outcome.chosen - 1]:g}" if outcome.chosen else ", alpha by input"
    if len(changes) > len(kept):
        said += f"; {len(changes) - len(kept)} undone, no gain at the outputs on samples held back"
    if skipped:
        said += "; skipped: " + ", ".join(f"{why} ({number})" for why, number in skipped.most_common())
    draft.notes.append(said)


def _said(kept: Sequence[_Smoothing], outcome: Outcome) -> str:
    """What was smoothed, and what it gains."""
    said = f"smoothquant: {len(kept)} inputs of {sum(len(change.nodes) for change in kept)} layers smoothed"
    if not kept:
        return said
    gain = float(np.mean([change.gain for change in kept]))
    inserted = sum(change.division is None for change in kept)
    products = f"(+{gain:.1f} dB a product, {inserted} by a Mul of its own)"
    return f"{said} {products}, outputs {outcome.before:.2f} dB to {outcome.after:.2f} dB"


def _found(
    draft: FloatDraft, alphas: Sequence[float], insert: float, skipped: Counter[str]
) -> tuple[list[dict[float, _Smoothing]], int]:
    """Exponent → smoothing, of each input that gains, and how many gain nothing; others are counted in ``skipped``."""
    groups = _groups(draft, skipped)
    samples = [spread(of, _SAMPLES) for of in (draft.fitting, draft.held)]
    by_alpha: list[dict[float, _Smoothing]] = []
    same = 0
    axes = {group.data.name or "": group.axis for group in groups}
    seen = captured(draft, axes, samples, draft.sizes())
    with draft.reporter.phase(NAME, total=len(groups), unit="inputs") as advance:
        for done, group in enumerate(groups, start=1):
            fit, judge = seen[group.data.name or ""]
            if fit is None or judge is None:
                skipped["an input that holds NaN or mask values, or cannot be observed"] += 1
            elif found := _smoothings(group, fit, judge, alphas, insert):
                by_alpha.append(found)
            else:
                same += 1
            advance(done)
    return by_alpha, same


def smoothing_scale(x: Channels, w: Channels, alpha: float) -> Channels:
    """The scale of each channel, with a geometric mean of 1 over the live ones.

    Args:
        x: largest magnitude of each channel of the activation, (C,).
        w: largest magnitude of the weights that read it, (C,).
        alpha: 0 to 1, how much of the outliers goes into the weights.

    Returns:
        (C,) float64; 1 for channels where either is zero.
    """
    live = (x > 0) & (w > 0)
    if not live.any():
        return np.ones_like(x)
    log_x = np.log(np.where(live, x, 1.0))
    log_w = np.log(np.where(live, np.maximum(w, _SMALLEST * w.max()), 1.0))
    log = alpha * log_x - (1.0 - alpha) * log_w
    return np.where(live, np.exp(log - log[live].mean()), 1.0)


def _groups(draft: FloatDraft, skipped: Counter[str]) -> list[_Group]:
    """Layers by the tensor they read, with the way to divide it; what cannot be done is counted."""
    plan = draft.plan()
    sites = plan.by_edge()
    found: dict[tuple[str, int, int], list[QuantizedLayer]] = {}
    for layer in quantized_layers(draft.model, plan):
        if layer.node.op_type == "Conv" and (layer.groups != 1 or any(n != 1 for n in layer.array().shape[2:])):
            continue
        site = sites.get(Edge(layer.name, 0))
        if site is None:
            continue
        if len(layer.weight.uses()) != 1:
            skipped["shared weights"] += 1
            continue
        axis = 1 if layer.node.op_type == "Conv" else -1
        found.setdefault((site.name, axis, id(layer.node.graph)), []).append(layer)
    divisor = Divisor(draft.model)
    groups = []
    for (_, axis, _), layers in found.items():
        group = _way(layers, axis, sites[Edge(layers[0].name, 0)], plan, divisor, skipped)
        if group is not None:
            groups.append(group)
    return groups


def _way(
    layers: Sequence[QuantizedLayer], axis: int, site: Site, plan: Plan, divisor: Divisor, skipped: Counter[str]
) -> _Group | None:
    data = layers[0].data
    channels = layers[0].matrix().shape[2]
    specs = tuple(plan.by_name[layer.site].spec for layer in layers)
    try:
        if {use.node for use in data.uses()} - {layer.node for layer in layers}:
            raise Refusal("it has other readers")
        division = divisor.division(data, channels, axis)
        return _Group(data, tuple(layers), axis, site.spec, specs, division)
    except Refusal:
        if site.produced:
            skipped["an input that is quantized where it is made"] += 1
        elif data.shape is None or site.fixed is not None:
            skipped["an input of unknown rank or of a fixed range"] += 1
        else:
            return _Group(data, tuple(layers), axis, site.spec, specs, None)
    return None


def _smoothings(
    group: _Group, fit: Seen, judge: Seen, alphas: Sequence[float], insert: float
) -> dict[float, _Smoothing]:
    """Alpha → smoothing of a group's input, for those that gain enough on the samples to learn from and to judge."""
    weights = np.max([np.abs(layer.matrix()[0]).max(axis=0) for layer in group.layers], axis=0).astype(np.float64)
    plain = np.ones_like(weights)
    least = insert if group.division is None else _FOLDED
    before = [group.errors(seen, plain) for seen in (fit, judge)]
    names = tuple(layer.name for layer in group.layers)
    found = {}
    for alpha in alphas:
        scale = smoothing_scale(fit.peak, weights, alpha)
        after = group.errors(fit, scale)
        gain = _gain(before[0], after)
        if gain >= least and (gain := _gain(before[1], group.errors(judge, scale))) >= least:
            found[alpha] = _Smoothing(
                group.data.name or "", names, scale, group.axis, group.division, gain, math.prod(after)
            )
    return found


def _gain(before: tuple[float, float], after: tuple[float, float]) -> float:
    """In dB, the mean of both measures; -inf where one of them is worse."""
    gains = [10 * math.log10(b / a) for b, a in zip(before, after, strict=True)]
    return sum(gains) / len(gains) if min(gains) >= 0 else -math.inf
