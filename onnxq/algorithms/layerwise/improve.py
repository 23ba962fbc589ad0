"""Weights of layers improved one layer after the other, each judged by its output error on samples held back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

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

    What is compared on samples held back is the layer's output error: with the weight and bias as they were, and with
    the answer and its bias; the better one stays, a tie leaves all as it was.

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
    free = bias and layer.bias is not None
    problem = _problem(layer, draft.numbers[layer.site], weight, seen.fitting, free, damping)
    answer = solve(problem)
    now = problem.grid.nearest(layer.matrix().astype(np.float64)) - weight
    change = answer.weight - weight
    old = _bias_change(draft, layer, weight.shape)
    new = -seen.fitting.offset(change) if free else old
    before = float(seen.held.error(now, old).sum())
    after = float(seen.held.error(change, new).sum())
    plain = float(seen.held.error(now, -seen.fitting.offset(now)).sum()) if free else before
    best = min(before, plain)
    if not after < best - _LEAST * abs(best):
        tally.undone += 1
        return
    tally.better += 1
    if 0 < after < before:
        tally.ratios.append(after / before)
    layer.set_weight(layer.weight_of(answer.weight))
    draft.numbers[layer.site] = answer.qparams
    if free and layer.bias is not None:
        start = original(draft, layer.bias.name)
        layer.set_bias(start.astype(np.float64) + np.reshape(new, start.shape))


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
