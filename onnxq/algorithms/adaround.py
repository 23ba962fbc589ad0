"""AdaRound: learn for every weight whether it is rounded up or down.

Nagel et al., Up or Down? Adaptive Rounding for Post-Training Quantization, 2020. The loss is the error of the layer's
output, ``tr((Q - W) H (Q - W)^T)``, exact over all samples. The paper relaxes the decisions and lets Adam find them;
``method=hessian`` decides them one at a time, each given all others, until none changes (coordinate descent), from two
starts: rounding to nearest, and GPTQ's rounding. ``method=data`` learns from what the layers read, see
:mod:`onnxq.algorithms.blockwise.learn_blocks`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from onnxq.algorithm import Draft
from onnxq.algorithms.common.parameter_help import LAYERWISE
from onnxq.algorithms.layerwise.improve import Answer, Problem, improve
from onnxq.algorithms.layerwise.rounding import descend, errors, feed_back
from onnxq.errors import OptionError

__all__ = ["HELP", "NAME", "PARAMETERS", "STAGE", "TITLE", "apply", "check"]

NAME = "adaround"
TITLE = "learn for every weight whether to round it up or down (AdaRound)"
STAGE = "numbers"
PARAMETERS: Mapping[str, object] = {
    "method": "hessian",
    "damping": 0.01,
    "prefix": False,
    "bias": True,
    "sweeps": 50,
    "iterations": 500,
}
HELP: Mapping[str, str] = {
    **LAYERWISE,
    "method": "hessian (by the second moments of a layer's inputs) or data (by gradient on the samples: uses only "
    "iterations, needs torch)",
    "sweeps": "passes over a layer's inputs at most, 1 or more; with method=hessian",
    "iterations": "training steps for each layer, 1 or more; with method=data",
}


def check(*, method: str, damping: float, prefix: bool, bias: bool, sweeps: int, iterations: int) -> None:
    """See :func:`apply`.

    Raises:
        OptionError: a value is out of range, or torch is missing where it is needed.
    """
    if method not in ("hessian", "data"):
        raise OptionError(f"{method!r} is not a method", where="algorithm adaround, method", hint="hessian or data")
    if not 0 <= damping <= 1:
        raise OptionError(f"{damping!r} is not between 0 and 1", where="algorithm adaround, damping")
    if sweeps < 1:
        raise OptionError(f"{sweeps!r} is below 1", where="algorithm adaround, sweeps")
    if iterations < 1:
        raise OptionError(f"{iterations!r} is below 1", where="algorithm adaround, iterations")
    if method == "data":
        from onnxq.algorithms.blockwise.learn_blocks import require_torch

        require_torch()


def apply(draft: Draft, *, method: str, damping: float, prefix: bool, bias: bool, sweeps: int, iterations: int) -> None:
    """Round the weights of a draft.

    Args:
        draft: changed in place.
        method: ``hessian``, or ``data``, which takes ``iterations`` only and needs torch.
        damping: share of the mean second moment that is added to each, 0 to 1; more where a layer was seen at few
            positions for its number of inputs. Keeps the rounding from fitting the samples too closely.
        prefix: layers read what the quantized layers before them give, and make up for its error as far as they can.
        bias: a layer's own bias takes up the mean error.
        sweeps: at most so many passes over a layer's inputs.
        iterations: steps for each layer.
    """
    if method == "data":
        from onnxq.algorithms.blockwise.learn_blocks import adaround_on_data

        adaround_on_data(draft, iterations=iterations)
        return
    improve(draft, partial(_solve, sweeps=sweeps), NAME, prefix=prefix, bias=bias, damping=damping)


def _solve(problem: Problem, *, sweeps: int) -> Answer:
    grid, target, hessian = problem.grid, problem.target, problem.hessian
    lowest, highest = (grid.qmin - grid.zero) * grid.scale, (grid.qmax - grid.zero) * grid.scale
    steps = target / grid.scale
    low = np.clip(np.floor(steps) * grid.scale, lowest, highest)
    high = np.clip((np.floor(steps) + 1.0) * grid.scale, lowest, highest)
    fed = feed_back(target, hessian, grid)
    answers = [
        descend(target, np.clip(start, low, high), hessian, grid, sweeps=sweeps, low=low, high=high)
        for start in (grid.nearest(target), fed)
    ]
    # of each output the better one
    first, second = (errors(made - target, hessian)[:, :, None] for made in answers)
    return Answer(np.where(second < first, answers[1], answers[0]), problem.qparams)
