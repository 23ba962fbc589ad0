"""Scales of weights by the error of the layer's output, layer after layer.

What AIMET calls sequential MSE: candidates of every output channel's scale are fractions of its full range, and the one
whose rounded weights give the least error of the output is taken. Here the error is exact over all samples at once,
from the second moments of the layer's input, so that no candidate needs a run.
"""

from __future__ import annotations

from collections.abc import Mapping

from onnxq.algorithm import Draft
from onnxq.algorithms.common.parameter_help import LAYERWISE
from onnxq.algorithms.layerwise.improve import Answer, Problem, improve
from onnxq.algorithms.layerwise.rounding import Grid
from onnxq.algorithms.layerwise.scales import search_scales
from onnxq.errors import OptionError

__all__ = ["HELP", "NAME", "PARAMETERS", "STAGE", "TITLE", "apply", "check"]

NAME = "seqmse"
TITLE = "choose the scales of weights by the error of each layer's output"
STAGE = "numbers"
PARAMETERS: Mapping[str, object] = {"candidates": 40, "lowest": 0.3, "prefix": False, "bias": True}
HELP: Mapping[str, str] = {
    "candidates": "how many scales are tried for each output channel, 1 or more",
    "lowest": "the smallest scale tried, as a fraction of the one that holds the whole range; above 0 and below 1",
    "prefix": LAYERWISE["prefix"],
    "bias": LAYERWISE["bias"],
}


def check(*, candidates: int, lowest: float, prefix: bool, bias: bool) -> None:
    """See :func:`apply`.

    Raises:
        OptionError: a value is out of range.
    """
    if candidates < 1:
        raise OptionError(f"{candidates!r} is below 1", where="algorithm seqmse, candidates")
    if not 0 < lowest < 1:
        raise OptionError(f"{lowest!r} is not between 0 and 1", where="algorithm seqmse, lowest")


def apply(draft: Draft, *, candidates: int, lowest: float, prefix: bool, bias: bool) -> None:
    """Choose the scales of a draft's weights.

    Args:
        draft: changed in place.
        candidates: how many scales are tried.
        lowest: the smallest, as a fraction of the one that holds the whole range; above 0 and below 1.
        prefix: layers read what the quantized layers before them give.
        bias: a layer's own bias takes up the mean error.
    """

    def solve(problem: Problem) -> Answer:
        found = search_scales(
            problem.layer, problem.qparams, problem.target, problem.hessian, lowest=lowest, steps=candidates
        )
        return Answer(Grid.of(problem.layer, found).nearest(problem.target), found)

    improve(draft, solve, NAME, prefix=prefix, bias=bias)
