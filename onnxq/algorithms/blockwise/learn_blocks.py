"""Blocks or layers learned one after the other, each from what the quantized model in front of it gives.

Everything that needs torch is imported when it is first used.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from onnxq.algorithm import Draft
from onnxq.algorithms.blockwise.block_data import UnobservableError, samples_of
from onnxq.algorithms.blockwise.block_grids import grids_of, site_edges
from onnxq.algorithms.blockwise.blocks import Block, find_blocks, single_layers
from onnxq.algorithms.common.originals import original
from onnxq.algorithms.common.quantized_layer import QuantizedLayer, quantized_layers, why_not_alone
from onnxq.algorithms.common.tally import Tally
from onnxq.errors import OptionError
from onnxq.graph.values import constant_array
from onnxq.measuring.decibels import noise_of
from onnxq.measuring.simulation import output_sqnr
from onnxq.numbers import fit_biases
from onnxq.plan import Edge
from onnxq.qparams import fake_quantize

if TYPE_CHECKING:
    from onnxq.torch.fit import Unit

__all__ = ["Learning", "adaround_on_data", "check_learning", "learn_blocks", "require_torch"]

Array = NDArray[Any]

_NO_DROP = 8
"""Bits of activations from which on all of them are quantized while learning: what they lose is small there."""
_LEAST_GAIN = 1e-4
"""Share of the error by which held-out error must fall: less is noise."""


@dataclass(frozen=True, slots=True)
class Learning:
    """What is learned of each block, and how.

    Attributes:
        name: of the algorithm, for notes.
        unit: ``"block"`` or ``"layer"``.
        weights: ``"round"`` (AdaRound: up or down) or ``"free"`` (AdaQuant: behind a straight-through rounding).
        iterations: steps for each block or layer.
        batch: samples in a step.
        lr: step of what decides the rounding, or of free weights in units of their scale.
        scale_lr: step of the logarithm of scales (of activations; of free weights too); 0 leaves them alone.
        bias_lr: step of biases, in units of the noise that rounding makes; 0 leaves them alone.
        drop: share of the activations that are not quantized in a step (QDrop), in blocks that have some below 8 bits.
        warmup: share of the iterations without AdaRound's regularizer; free weights have none.
        regularize: its strength, relative to the gradient of the error.
    """

    name: str
    unit: Literal["block", "layer"]
    weights: Literal["round", "free"]
    iterations: int
    batch: int
    lr: float
    scale_lr: float = 0.0
    bias_lr: float = 0.0
    drop: float = 0.0
    warmup: float = 0.2
    regularize: float = 100.0


def require_torch() -> None:
    """Raises an :class:`OptionError` that says what to install where torch is missing."""
    import onnxq.torch  # noqa: F401


def check_learning(**parameters: float) -> None:
    """Hold parameters against the values they may take.

    Raises:
        OptionError: one is out of range, or torch is missing.
    """
    least = {"iterations": 1, "batch": 1, "lr": 1e-9}
    most = {"drop": 0.99, "warmup": 0.99}
    for name, value in parameters.items():
        low, high = least.get(name, 0.0), most.get(name, math.inf)
        if isinstance(value, (int, float)) and not low <= value <= high:
            bounds = f"at least {low:g}" if high == math.inf else f"from {low:g} to {high:g}"
            raise OptionError(f"{name}={value:g} is out of range", hint=f"It must be {bounds}")
    require_torch()


def adaround_on_data(draft: Draft, *, iterations: int, batch: int = 16) -> None:
    """AdaRound layer by layer, by gradient on samples (Nagel et al., 2020).

    Args:
        draft: changed in place; a note says what was done.
        iterations: steps for each layer.
        batch: samples in a step.
    """
    check_learning(iterations=iterations, batch=batch)
    learn_blocks(draft, Learning("adaround", "layer", "round", iterations, batch, lr=3e-2))


def learn_blocks(draft: Draft, learning: Learning) -> None:
    """Learn all blocks (or layers) of a draft, in order.

    A block whose output error on the samples held back does not fall stays as it was, and if the model's outputs do
    not come closer to the float model's there, all of them do.

    Args:
        draft: changed in place; a note says what was done.
        learning: what and how.
    """
    tally = Tally(learning.unit)
    layers = list(_layers(draft, tally.skip))
    blocks = (find_blocks if learning.unit == "block" else single_layers)(draft.model, layers)
    for _ in range(len(layers) - sum(len(b.layers) for b in blocks)):
        tally.skip("inside a subgraph")
    before = _Snapshot.of(draft, layers)
    noise = _noise(draft)
    with draft.reporter.phase(learning.name, total=len(blocks) * learning.iterations, unit="steps") as advance:
        for index, block in enumerate(blocks):
            _learn_one(draft, block, learning, index, tally, lambda s, i=index: advance(i * learning.iterations + s))
            advance((index + 1) * learning.iterations)
    fit_biases(draft.model, draft.plan, draft.numbers)
    note = f"{learning.name}: {tally}"
    after = _noise(draft)
    if tally.better and after > noise:
        before.restore(draft, layers)
        note += (
            f"; all undone: the outputs' noise over signal on samples held back would be {after:.3g}, not {noise:.3g}"
        )
    elif tally.better:
        note += f"; the outputs' noise over signal there fell from {noise:.3g} to {after:.3g}"
    draft.notes.append(note)


def _learn_one(draft: Draft, block: Block, learning: Learning, index: int, tally: Tally, advance: Any) -> None:
    from onnxq.torch.executor import unsupported_nodes
    from onnxq.torch.fit import OtherShapeError, Settings, learn

    bad = unsupported_nodes(block.nodes)
    if bad:
        for _ in block.layers:
            tally.skip(f"torch cannot run {bad[0]}")
        return
    try:
        unit = _unit(draft, block, learning)
    except UnobservableError as reason:
        for _ in block.layers:
            tally.skip(str(reason))
        return
    narrow = any(grid.qp.spec.bits < _NO_DROP for grid in unit.distinct_grids)
    settings = Settings(
        learning.iterations, learning.batch, learning.lr, learning.scale_lr, learning.bias_lr,
        learning.drop if narrow else 0.0,
        learning.warmup, learning.regularize, draft.options.seed * 1_000_003 + index,
    )  # fmt: skip
    try:
        fit = learn(unit, settings, advance)
    except OtherShapeError:
        for _ in block.layers:
            tally.skip("its output has another shape once quantized")
        return
    if not fit.after < fit.before * (1 - _LEAST_GAIN):
        tally.undone += 1
        return
    tally.better += 1
    tally.ratios.append(fit.after / fit.before)
    _write(draft, block, unit)


def _unit(draft: Draft, block: Block, learning: Learning) -> Unit:
    from onnxq.torch.executor import Executor
    from onnxq.torch.fit import Unit
    from onnxq.torch.weights import FreeWeight, RoundedWeight, tensor_of

    executor = Executor(draft.model, block.inputs, [block.output])
    fitting, held = samples_of(draft, block)
    weights, biases, present = {}, {}, {}
    inside = {node.name for node in block.nodes}
    for layer in block.layers:
        name, qp = layer.weight.name or "", draft.numbers[layer.site]
        exact, rounded = original(draft, layer.weight.name), fake_quantize(layer.array(), qp)
        weights[name] = RoundedWeight(exact, qp, rounded) if learning.weights == "round" else FreeWeight(exact, qp)
        present[name] = tensor_of(rounded)
        if learning.bias_lr and layer.bias is not None and all(u.node.name in inside for u in layer.bias.uses()):
            start = constant_array(layer.bias)
            assert start is not None
            biases[layer.bias.name or ""] = (tensor_of(start), tensor_of(_unit_of_bias(draft, layer, start.shape)))
    learned = {layer.site for layer in block.layers}
    grids = grids_of(draft, block, learned, bool(learning.scale_lr))
    return Unit(executor, weights, biases, grids, present, fitting, held)


def _unit_of_bias(draft: Draft, layer: QuantizedLayer, shape: Sequence[int]) -> Array:
    """The noise that rounding a row of the weight makes at the output, for inputs as large as their grid allows."""
    scale, _ = layer.rows(draft.numbers[layer.site])
    inputs = layer.matrix().shape[2]
    noise = scale.max(axis=2).reshape(-1) * math.sqrt(inputs / 12)
    site = next((s for s in draft.plan.sites if Edge(layer.name, 0) in s.readers and s.name in draft.numbers), None)
    if site is not None:
        noise = noise * float(np.max(draft.numbers[site.name].hi - draft.numbers[site.name].lo)) / 6
    return np.asarray(noise, np.float32).reshape(shape)


def _write(draft: Draft, block: Block, unit: Unit) -> None:
    for layer in block.layers:
        weight, draft.numbers[layer.site] = unit.weights[layer.weight.name or ""].result()
        layer.set_weight(weight)
        if layer.bias is not None and layer.bias.name in unit.biases:
            layer.set_bias(unit.bias(layer.bias.name or "").detach().cpu().numpy().reshape(-1))
    for edge, site in site_edges(draft.plan.sites, block.nodes).items():
        grid = unit.grids.get(edge)
        if grid is not None and grid.stretch is not None:
            root = draft.plan.root(site).name
            scale = grid.result().scale
            for other in draft.plan.sites:
                if other.name in draft.numbers and draft.plan.root(other).name == root:
                    draft.numbers[other.name] = replace(draft.numbers[other.name], scale=scale)
    fit_biases(draft.model, draft.plan, draft.numbers)


def _layers(draft: Draft, skip: Any) -> Iterator[QuantizedLayer]:
    """Layers whose weight belongs to them alone."""
    for layer in quantized_layers(draft.model, draft.plan, stored=True):
        if (why := why_not_alone(layer, draft.plan)) is not None:
            skip(why)
        elif draft.numbers[layer.site].spec.bits > 16:
            skip("more than 16 bits")
        else:
            yield layer


def _noise(draft: Draft) -> float:
    """Noise over signal of the worst float output on the samples held back, a power ratio; infinite if it fails."""
    return noise_of(output_sqnr(draft.quantized(), draft.held, draft.options))


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """Weights, biases and numbers as they were."""

    weights: list[NDArray[np.float32]]
    biases: list[Array | None]
    numbers: dict[str, Any]

    @classmethod
    def of(cls, draft: Draft, layers: Sequence[QuantizedLayer]) -> _Snapshot:
        return cls([x.array() for x in layers], [constant_array(x.bias) for x in layers], dict(draft.numbers))

    def restore(self, draft: Draft, layers: Sequence[QuantizedLayer]) -> None:
        for layer, weight, bias in zip(layers, self.weights, self.biases, strict=True):
            layer.set_weight(weight)
            if bias is not None:
                layer.set_bias(bias)
        draft.numbers.clear()
        draft.numbers.update(self.numbers)
