"""Weights of layers improved one layer after the other, each judged by its output error on samples held back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from onnxq.algorithm import Draft
from onnxq.algorithms.common.originals import original
from onnxq.algorithms.common.quantized_layer import QuantizedLayer, quantized_layers, why_not_alone
from onnxq.algorithms.common.tally import Tally
from onnxq.algorithms.layerwise.hessian import LARGEST, Seen, batches, moments_of
from onnxq.algorithms.layerwise.moments import Moments
from onnxq.algorithms.layerwise.rounding import Grid, damped
from onnxq.graph.values import constant_array
from onnxq.numbers import fit_biases
from onnxq.qparams import QParams

__all__ = ["Answer", "Problem", "improve"]

Doubles = NDArray[np.float64]

_SHRINKAGE = 4.0
"""Damping where there are as many inputs as positions."""
_LEAST = 1e-6
"""Share of the error by which held-out error must fall: less is rounding noise."""


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """A layer whose weight is to be rounded.

    Attributes:
        layer: the layer.
        qparams: numbers of its weight as they are now.
        weight: of the float model, float64 (groups, outputs, inputs).
        target: what comes closest to the float layer's output if it need not be rounded; ``weight`` where the layer
            reads what the float model's does.
        hessian: second moments of the input that the error is measured with, (groups, inputs, inputs): about the means
            where the bias can take up a shift, else about zero; damped, so positive definite.
        moments: over the samples to learn from.
    """

    layer: QuantizedLayer
    qparams: QParams
    weight: Doubles
    target: Doubles
    hessian: Doubles
    moments: Moments

    def pulled(self, share: float) -> Problem:
        """With a share of what takes the target away from the weight, 0 to 1."""
        return replace(self, target=self.weight + share * (self.target - self.weight))

    @property
    def grid(self) -> Grid:
        """Of the weight, with the numbers as they are now."""
        return Grid.of(self.layer, self.qparams)


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """A rounded weight.

    Attributes:
        weight: on the grid, (groups, outputs, inputs).
        qparams: its numbers.
    """

    weight: Doubles
    qparams: QParams


def improve(
    draft: Draft,
    solve: Callable[[Problem], Answer],
    name: str,
    *,
    prefix: bool = False,
    bias: bool = True,
    damping: float = 0.01,
) -> None:
    """Give layers better weights.

    What is compared on samples held back is the layer's output error: with the weight and bias as they were, with that
    weight and a bias that takes up the mean error, and with the answer and its bias; the best stays, a tie leaves all
    as it was. They also tell how much of the error of the layers before it a layer is to make up for: what makes up for
    it on the samples learned from does so by chance in part. What is decided for weights of few bits is learned once
    more from all these samples, where others judge and verify.

    Args:
        draft: changed in place; a note says what was done.
        solve: gives a layer's weight.
        name: of the algorithm, for the note.
        prefix: layers read what the quantized layers before them give, else what the float model gives.
        bias: where a layer has a bias of its own, it takes up the mean of the error.
        damping: share of the mean second moment that is added to each, at least; see :func:`_problem`.
    """
    tally = Tally("layer")
    layers = list(_layers_to_improve(draft, tally.skip))
    done = 0
    with draft.reporter.phase(name.replace("_", " "), total=len(layers), unit="layers") as advance:
        for batch in batches(layers, draft.model.graph if prefix else None):
            left = {layer.name for layer in batch}
            for seen in moments_of(draft, batch, prefix=prefix):
                left.remove(seen.layer.name)
                _improve_one(draft, seen, solve, tally, bias=bias, damping=damping)
                done += 1
                advance(done)
            for _ in left:
                tally.skip("its input cannot be observed, is not finite, or has another shape once quantized")
    fit_biases(draft.model, draft.plan, draft.numbers)
    draft.notes.append(f"{name}: {tally}")


def _layers_to_improve(draft: Draft, skip: Callable[[str], None]) -> Iterator[QuantizedLayer]:
    """The layers whose weight belongs to them alone and is quantized on a uniform grid.

    Args:
        draft: a planned model.
        skip: told why a layer is left alone.
    """
    for layer in quantized_layers(draft.model, draft.plan, stored=True):
        if (why := why_not_alone(layer, draft.plan)) is not None:
            skip(why)
        elif layer.matrix().shape[2] > LARGEST:
            skip(f"more than {LARGEST} inputs")
        elif not np.isfinite(layer.array()).all():
            skip("its weight is not finite")
        else:
            yield layer


def _improve_one(
    draft: Draft, seen: Seen, solve: Callable[[Problem], Answer], tally: Tally, *, bias: bool, damping: float
) -> None:
    layer = seen.layer
    weight = layer.matrix(original(draft, layer.weight.name)).astype(np.float64)
    qparams, free = draft.numbers[layer.site], bias and layer.bias is not None
    trial = _Trial(seen, _bias_change(draft, layer, weight.shape), free)
    change = Grid.of(layer, qparams).nearest(layer.matrix().astype(np.float64)) - weight
    before = float(seen.held.error(change, trial.old).sum())
    with_bias = trial.error(change)
    problem = _problem(layer, qparams, weight, seen.fitting, free, damping)
    share = trial.share(problem.target - weight)
    answer = solve(problem.pulled(share))
    after = trial.error(answer.weight - weight)
    if _is_less(after, min(before, with_bias)):
        tally.better += 1
        if 0 < after < before:
            tally.ratios.append(after / before)
        if seen.every is not seen.fitting:
            answer = solve(_problem(layer, qparams, weight, seen.every, free, damping).pulled(share))
        layer.set_weight(layer.weight_of(answer.weight))
        draft.numbers[layer.site] = answer.qparams
        change = answer.weight - weight
    else:
        tally.undone += 1
        if not _is_less(with_bias, before):
            return
    if free and layer.bias is not None:
        start = original(draft, layer.bias.name)
        layer.set_bias(start.astype(np.float64) + np.reshape(-seen.every.offset(change), start.shape))


def _is_less(error: float, than: float) -> bool:
    return error < than - _LEAST * abs(than)


@dataclass(frozen=True, slots=True, eq=False)
class _Trial:
    """What changes of a layer's weight do to its output on samples held back.

    Attributes:
        seen: what the layer read.
        old: change of the bias so far, (groups, outputs).
        free: whether the bias takes up the mean of the error.
    """

    seen: Seen
    old: Doubles | float
    free: bool

    def bias(self, change: Doubles) -> Doubles | float:
        """The change of the bias that goes with one of the weight, as learned."""
        return -self.seen.fitting.offset(change) if self.free else self.old

    def error(self, change: Doubles) -> float:
        """Of the output, with that change of the bias."""
        return float(self.seen.held.error(change, self.bias(change)).sum())

    def share(self, pull: Doubles) -> float:
        """The part of a change, 0 to 1, with which the error is least: a parabola through three."""
        if self.seen.held.drift is None:
            return 1.0
        none, half, whole = (self.error(part * pull) for part in (0.0, 0.5, 1.0))
        bend, slope = 2.0 * (whole + none - 2.0 * half), 4.0 * half - whole - 3.0 * none
        return min(max(-slope / (2.0 * bend), 0.0), 1.0) if bend > 0 else 1.0


def _problem(
    layer: QuantizedLayer, qparams: QParams, weight: Doubles, moments: Moments, free: bool, damping: float
) -> Problem:
    """Second moments of few positions tell little of directions in which these happen not to vary: the damping grows
    with inputs over positions."""
    shrinkage = damping + _SHRINKAGE * weight.shape[2] / moments.count
    hessian = damped(moments.spread if free else moments.total(), shrinkage)
    drift = moments.drift if free else moments.drift_total()
    target = weight
    if drift is not None:
        # the change D of least |D x + u|^2: D = -R S^-1
        pull = np.linalg.solve(hessian, drift.transpose(0, 2, 1)).transpose(0, 2, 1)
        target = weight - pull
    return Problem(layer, qparams, weight, target, hessian, moments)


def _bias_change(draft: Draft, layer: QuantizedLayer, shape: Sequence[int]) -> Doubles | float:
    """What was added to the bias before, (groups, outputs)."""
    if layer.bias is None:
        return 0.0
    now = constant_array(layer.bias)
    assert now is not None
    change = now.astype(np.float64) - original(draft, layer.bias.name)
    return np.asarray(change.reshape(shape[0], shape[1]))
