"""Cross-layer equalization: scale the channels between two layers so that one grid fits them all.

``f(W1 x + b1)`` divided by a positive scale a channel, with ``W2`` multiplied by it, computes the same for every ``f``
with ``f(s x) = s f(x)`` (Nagel et al., Data-Free Quantization Through Weight Equalization and Bias Correction, 2019,
section 4.1). The paper's scale is ``sqrt(r1 / r2)`` with the ranges r1, r2 of a channel in both weights; where weights
have a scale for each output channel that gains nothing, and the range of the activation ``a`` matters. So the scale is
``r1^p a^q r2^(p+q-1)`` with the exponents whose noise at the output of the second layer is estimated to be least, for
the way both weights and the activation are quantized (see :mod:`onnxq.algorithms.channels.channel_noise`). Pairs of a
chain are gone through until nothing changes.

With ``clip`` scales pass through a Clip from 0, such as ReLU6, as well: the channels that reach its upper bound on the
samples keep their scale, and no other is raised above it. That is exact only on data that rises no higher.

With ``absorb`` the part of a bias by which a channel never falls to zero moves through a Relu into the next bias
(section 4.1.3), ``min(mean - 3 std, min)`` on the kept samples; that is exact only on data that falls no lower.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxq.algorithm import FloatDraft
from onnxq.algorithms.channels.absorb import absorptions
from onnxq.algorithms.channels.channel_noise import (
    Channels,
    ChannelStats,
    Specs,
    activation_noise,
    input_gain,
    measure_channels,
    output_noise,
    weight_error,
)
from onnxq.algorithms.channels.clip_room import let_through, smallest_scale
from onnxq.algorithms.channels.pairs import LayerPair, channel_rows, find_pairs, pair_at, scale_pair
from onnxq.algorithms.common.keep_what_helps import Outcome, keep_what_helps
from onnxq.calibration.moved import Move
from onnxq.calibration.roles import spread
from onnxq.graph.layer import Layer
from onnxq.graph.values import constant_array
from onnxq.spec import PerTensor

__all__ = ["HELP", "NAME", "PARAMETERS", "STAGE", "TITLE", "apply"]

NAME = "equalize"
TITLE = "scale the channels between two layers so that one grid fits them all"
STAGE = "float"
PARAMETERS: Mapping[str, object] = {"absorb": False, "clip": False}
HELP: Mapping[str, str] = {
    "absorb": "true: the part of a bias that keeps a channel above zero moves into the next layer's bias as well, "
    "exact only on data like the samples; false: only scales move",
    "clip": "true: through a Clip from 0 (ReLU6) as well, for channels that stay below its upper bound, exact only on "
    "data like the samples; false: layers behind one are left as they are",
}

_EXPONENTS = ((0.5, 0.0), (0.0, 1.0), (0.0, 0.75), (0.0, 0.5), (0.0, 0.25), (0.25, 0.5), (0.33, 0.33), (0.25, 0.25))
"""Of r1 and of the activation's range; r2 has what is missing to 1, negative."""
_SWEEPS = 12
_LEAST = 0.97
"""Noise over noise before: a smaller gain is not worth a change."""
_SAMPLES = 16
_FURTHEST = 2.0**24
"""Largest factor between a channel and the mean of all."""


@dataclass(frozen=True, slots=True, eq=False)
class _Chain:
    """Pairs that follow each other, with their scales: name of the pair → (C,) float64."""

    scales: Mapping[str, Channels]

    def apply(self, draft: FloatDraft) -> dict[str, Move]:
        """Scale them."""
        lookup = draft.lookup()
        changed: dict[str, Move] = {}
        for name, scale in self.scales.items():
            pair = pair_at(lookup.nodes[name])
            names = [value.name or "" for value in (*_inside(pair.first), *pair.path)]
            changed.update({name: Move(name, scale) for name in names})
            scale_pair(pair, scale, lookup.namer)
        return changed


def apply(draft: FloatDraft, absorb: bool = False, clip: bool = False) -> None:
    """Equalize a model, and undo what does not help it on the samples held back.

    Args:
        draft: changed in place.
        absorb: let biases pass through Relus, too.
        clip: let scales pass through Clips, too.
    """
    if not draft.statistics.kept:
        draft.notes.append("equalize: nothing done, the statistics hold no samples")
        return
    search = _Search(draft, clip)
    gains = search.run()
    chains = search.chains()
    outcome = keep_what_helps(draft, chains)
    draft.notes.append(_note(chains, outcome, gains, search.skipped))
    if absorb:
        moves, channels = absorptions(draft)
        if not moves:
            draft.notes.append("equalize: no biases to absorb")
            return
        done = keep_what_helps(draft, moves)
        draft.notes.append(
            f"equalize: biases absorbed in {len(done.kept)} of {len(moves)} pairs "
            f"({sum(channels[i] for i in done.kept)} channels), {done.before:.2f} dB to {done.after:.2f} dB"
        )


class _Search:
    """Finds the scales, on a copy of the model of which only the weights count."""

    def __init__(self, draft: FloatDraft, clip: bool) -> None:
        self.model = draft.model.clone()
        self.pairs, self.skipped = find_pairs(self.model, clip=clip)
        self.specs = Specs(draft.plan())
        self._keep_only_quantized()
        axes = {p.path[-1].name or "": _axis(p.second) for p in self.pairs}
        others = [(p.first, value) for p in self.pairs for value in (p.first.node.inputs[0], p.capped)]
        axes.update({value.name or "": _axis(layer) for layer, value in others if value is not None})
        samples = spread(draft.fitting, _SAMPLES)
        self.stats = (
            measure_channels(draft.model, axes, samples, options=draft.options, sizes=draft.sizes()) if axes else {}
        )
        self._keep_only_measured()
        self.behind = {pair.first.node: pair for pair in self.pairs}
        self.scales = {pair.name: np.ones(pair.second.in_channels()) for pair in self.pairs}
        capped = [(pair, pair.capped.name or "") for pair in self.pairs if pair.capped is not None]
        self.least = {pair.name: smallest_scale(pair, self.stats[name].magnitude) for pair, name in capped}

    def run(self) -> dict[str, float]:
        """Scale pair after pair until nothing is gained.

        Returns:
            Name of each pair changed → its noise before over its noise now, as estimated.
        """
        gains: dict[str, float] = {}
        waiting = list(self.pairs)
        for _ in range(_SWEEPS):
            changed: set[ir.Node] = set()
            for pair in waiting:
                gain = self._step(pair)
                if gain > 1.0:
                    gains[pair.name] = gains.get(pair.name, 1.0) * gain
                    changed |= {pair.first.node, pair.second.node}
            waiting = [pair for pair in self.pairs if {pair.first.node, pair.second.node} & changed]
            if not waiting:
                break
        return gains

    def chains(self) -> list[_Chain]:
        """The pairs that were scaled, those together that share a layer."""
        parts: list[dict[str, Channels]] = []
        where: dict[ir.Node, dict[str, Channels]] = {}
        for pair in self.pairs:  # in the order of the graph: the pair before comes first
            if not np.any(self.scales[pair.name] != 1.0):
                continue
            part = where.get(pair.first.node)
            if part is None:
                parts.append(part := {})
            part[pair.name] = self.scales[pair.name]
            where[pair.second.node] = part
        return [_Chain(part) for part in parts]

    def _keep_only_quantized(self) -> None:
        kept = []
        for pair in self.pairs:
            places = ((pair.first.node, 1), (pair.second.node, 0), (pair.second.node, 1))
            if all(self.specs.of(*place) is None for place in places):
                self.skipped["not quantized"] += 1
            else:
                kept.append(pair)
        self.pairs = kept

    def _keep_only_measured(self) -> None:
        kept = []
        for pair in self.pairs:
            data, between = pair.first.node.inputs[0], pair.path[-1]
            known = [self.stats.get(v.name or "") for v in (data, between, pair.capped or between) if v is not None]
            sizes = [None if stats is None else stats.power.size for stats in known]
            if sizes == [pair.first.in_channels(), pair.second.in_channels(), pair.second.in_channels()]:
                kept.append(pair)
            else:
                self.skipped["channels that cannot be observed"] += 1
        self.pairs = kept

    def _step(self, pair: LayerPair) -> float:
        """Scale a pair by the best scale; noise before over noise now, 1.0 where nothing was changed."""
        between = pair.path[-1].name or ""
        stats = self.stats[between]
        importance = self._importance(pair.second)
        now = self._noise(pair, None, stats, importance)
        scales = self._candidates(pair, stats)
        if pair.name in self.least:
            least = self.least[pair.name] / self.scales[pair.name]
            scales = [passed for scale in scales for passed in let_through(scale, least)]
        tried = [(self._noise(pair, s, stats, importance), s) for s in scales]
        noise, scale = min(tried, key=lambda item: item[0], default=(now, None))
        if scale is None or not noise < _LEAST * now:
            return 1.0
        _set_weight(pair.first, pair.first.scaled(1.0 / scale))
        _set_weight(pair.second, pair.second.scaled_inputs(scale))
        self.stats[between] = stats.divided(scale)
        self.scales[pair.name] = self.scales[pair.name] * scale
        return now / max(noise, 1e-300)

    def _candidates(self, pair: LayerPair, stats: ChannelStats) -> list[Channels]:
        """Scales to try; 1 where a channel is dead: no weight before or behind, or never anything but zero."""
        first_spec, second_spec = self.specs.of(pair.first.node, 1), self.specs.of(pair.second.node, 1)
        before = np.abs(channel_rows(pair.first, pair.first.array())).max(axis=(1, 2))
        rows = np.abs(channel_rows(pair.second, pair.second.array()))
        if second_spec is not None and not isinstance(second_spec.granularity, PerTensor):
            rows /= np.maximum(rows.max(axis=(1, 2), keepdims=True), 1e-300)
        groups = pair.second.groups if pair.second.is_conv else 1
        behind = rows.max(axis=2).reshape(groups, -1, rows.shape[1]).max(axis=1).reshape(-1)
        span = stats.magnitude
        live = (before > 0) & (behind > 0) & (span > 0)
        if live.sum() < 2:
            return []
        per_tensor = first_spec is not None and isinstance(first_spec.granularity, PerTensor)
        logs = [np.log(np.where(live, r, 1.0)) for r in (before, span, behind)]
        found = []
        for p, q in _EXPONENTS:
            if p and not per_tensor:
                continue
            log = p * logs[0] + q * logs[1] - (1.0 - p - q) * logs[2]
            log -= log[live].mean()
            scale = np.where(live, np.clip(np.exp(log), 1.0 / _FURTHEST, _FURTHEST), 1.0)
            found.append(scale)
        return found

    def _noise(self, pair: LayerPair, scale: Channels | None, stats: ChannelStats, importance: Channels) -> float:
        """Noise power at the output of the second layer with the channels divided by a scale."""
        first, second = pair.first, pair.second
        if scale is None:
            before, behind = first.array(), second.array()
        else:
            before, behind = np.asarray(first.scaled(1.0 / scale), np.float64), second.scaled_inputs(scale)
            stats = stats.divided(scale)
        data = first.node.inputs[0]
        power = self.stats[data.name or ""].power if data is not None else np.ones(first.in_channels())
        made = output_noise(first, weight_error(before, self.specs.of(first.node, 1)), power) * stats.active
        made = made + activation_noise(stats, self.specs.of(second.node, 0))
        own = output_noise(second, weight_error(behind, self.specs.of(second.node, 1)), stats.power)
        return float(made @ input_gain(second, behind, importance) + own @ importance)

    def _importance(self, layer: Layer) -> Channels:
        """What noise in each output channel counts: by what the layer behind makes of it, where that is in a pair."""
        pair = self.behind.get(layer.node)
        if pair is None:
            return np.ones(layer.out_channels())
        return input_gain(pair.second, pair.second.array(), np.ones(pair.second.out_channels()))


def _axis(layer: Layer) -> int:
    return 1 if layer.is_conv else -1


def _inside(layer: Layer) -> Sequence[ir.Value]:
    """The tensor between a MatMul and the Add that gives it a bias."""
    return layer.node.outputs[:1] if layer.add is not None else ()


def _set_weight(layer: Layer, array: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> None:
    old = constant_array(layer.weight)
    assert old is not None
    layer.weight.const_value = ir.tensor(np.ascontiguousarray(array, np.float32), name=layer.weight.name)


def _note(chains: Sequence[_Chain], outcome: Outcome, gains: Mapping[str, float], skipped: Counter[str]) -> str:
    count = sum(len(chain.scales) for chain in chains)
    kept = [name for index in outcome.kept for name in chains[index].scales]
    said = f"equalize: {len(kept)} pairs scaled"
    if kept:
        mean = float(np.mean([10 * np.log10(gains[name]) for name in kept]))
        said += f" (noise -{mean:.1f} dB each, by estimate), outputs {outcome.before:.2f} dB to {outcome.after:.2f} dB"
    if count > len(kept):
        said += f"; {count - len(kept)} undone, no gain on samples held back"
    if skipped:
        said += "; layers skipped: " + ", ".join(f"{why} ({number})" for why, number in skipped.most_common())
    return said
