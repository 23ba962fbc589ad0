"""GPTQ: round a layer's weights one input after the other; those not yet rounded take up the error made so far.

Frantar et al., GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers, 2022. Convolutions
are matrix products of patches, every group of them by itself. The second moments of a layer's input are measured about
the means where the layer has a bias of its own, which then takes up the mean error. Layers of few inputs, depthwise
kernels above all, are rounded by a wider search as well, and each output takes what has the least error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from onnxq.algorithm import Draft
from onnxq.algorithms.common.parameter_help import LAYERWISE
from onnxq.algorithms.layerwise.beam import MOST_INPUTS, beam
from onnxq.algorithms.layerwise.improve import Answer, Problem, improve
from onnxq.algorithms.layerwise.rounding import Grid, descend, errors, feed_back
from onnxq.algorithms.layerwise.scales import fit_scales, search_scales
from onnxq.errors import OptionError
from onnxq.qparams import QParams
from onnxq.spec import PerChannel

__all__ = ["HELP", "NAME", "PARAMETERS", "STAGE", "TITLE", "apply", "check", "solve"]

NAME = "gptq"
TITLE = "round weights so that the errors of a layer's inputs make up for each other (GPTQ)"
STAGE = "numbers"
PARAMETERS: Mapping[str, object] = {
    "order": "activation",
    "damping": 0.01,
    "prefix": False,
    "bias": True,
    "search": True,
    "sweeps": 2,
}
HELP: Mapping[str, str] = {
    **LAYERWISE,
    "order": "which inputs of a layer are rounded first: activation (those with the largest second moment) or natural "
    "(as they come)",
    "search": "true: scales of weights of 2 to 4 bits are searched again and fitted to the rounded weights, and kept "
    "where these are better; false: they stay",
    "sweeps": "passes of coordinate descent over the rounded weights, 0 or more",
}

_SEARCHED = 4
"""Bits up to which scales are searched again."""
_FITS = 3
"""How often scales are fitted to integers."""


def check(*, order: str, damping: float, prefix: bool, bias: bool, search: bool, sweeps: int) -> None:
    """See :func:`apply`.

    Raises:
        OptionError: a value is out of range.
    """
    if order not in ("activation", "natural"):
        raise OptionError(f"{order!r} is not an order", where="algorithm gptq, order", hint="activation or natural")
    if not 0 <= damping <= 1:
        raise OptionError(f"{damping!r} is not between 0 and 1", where="algorithm gptq, damping")
    if sweeps < 0:
        raise OptionError(f"{sweeps!r} is below 0", where="algorithm gptq, sweeps")


def apply(draft: Draft, *, order: str, damping: float, prefix: bool, bias: bool, search: bool, sweeps: int) -> None:
    """Round the weights of a draft.

    Args:
        draft: changed in place.
        order: ``activation``: inputs of large second moment first; ``natural``: as they come.
        damping: share of the mean second moment that is added to each, 0 to 1; more where a layer was seen at few
            positions for its number of inputs.
        prefix: layers read what the quantized layers before them give, and make up for its error as far as they can.
        bias: a layer's own bias takes up the mean error.
        search: scales of 2 to 4 bits are searched again, for the error with the inputs' second moments and with their
            diagonal alone, fitted to the rounded weights, and kept where these are better: of each output, where it has
            a scale of its own.
        sweeps: passes of coordinate descent over the rounded weights.
    """
    how = partial(solve, by_activation=order == "activation", search=search, sweeps=sweeps)
    improve(draft, how, NAME, prefix=prefix, bias=bias, damping=damping)


def solve(problem: Problem, *, by_activation: bool, search: bool, sweeps: int) -> Answer:
    """Round one layer's weight."""
    hessian = problem.hessian
    choices, few = [problem.qparams], problem.qparams.spec.bits <= _SEARCHED
    if search and few:
        both = (np.diagonal(hessian, axis1=1, axis2=2), hessian)
        choices += [search_scales(problem.layer, problem.qparams, problem.target, moments) for moments in both]
    answers = []
    for qparams in choices:
        grid = Grid.of(problem.layer, qparams)
        made = [feed_back(problem.target, hessian, grid, by_activation=by_activation)]
        if sweeps:
            made = [descend(problem.target, made[0], hessian, grid, sweeps=sweeps)]
        if few and hessian.shape[1] <= MOST_INPUTS:
            made.append(beam(problem.target, hessian, grid))
        for weight in made:
            answers.append(Answer(weight, qparams))
            if search and few:
                answers.append(_fitted(problem, answers[-1]))
    return _best(problem, answers)


def _fitted(problem: Problem, answer: Answer) -> Answer:
    """Scales fitted to the integers, and these to the scales, in turn; never worse."""
    weight, qparams = answer.weight, answer.qparams
    for again in range(_FITS):
        qparams, weight = fit_scales(problem.layer, qparams, weight, problem.target, problem.hessian)
        if again + 1 < _FITS:
            grid = Grid.of(problem.layer, qparams)
            weight = descend(problem.target, weight, problem.hessian, grid, sweeps=1)
    return Answer(weight, qparams)


def _best(problem: Problem, answers: Sequence[Answer]) -> Answer:
    """The answer of least error: of each output by itself, where it has a scale of its own."""
    found = np.stack([errors(answer.weight - problem.target, problem.hessian) for answer in answers])
    spec = problem.qparams.spec
    if not isinstance(spec.granularity, PerChannel) or not problem.qparams.scale.ndim:
        return answers[int(found.sum(axis=(1, 2)).argmin())]
    which = found.argmin(axis=0)  # (groups, outputs)
    weight = np.take_along_axis(np.stack([answer.weight for answer in answers]), which[None, :, :, None], axis=0)[0]
    numbers = ([getattr(answer.qparams, part) for answer in answers] for part in ("scale", "zero_point"))
    scale, zero = (np.choose(which.reshape(-1), parts) for parts in numbers)
    return Answer(weight, QParams(spec, scale, zero))
