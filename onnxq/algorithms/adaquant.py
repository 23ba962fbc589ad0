"""AdaQuant: weights, their scales, activation scales and biases learned by gradient, layer by layer or by block.

Weights move freely behind a rounding through which gradients pass straight (Hubara et al., Improving Post Training
Neural Quantization: Layer-wise Calibration and Integer Programming, 2020, section 3.1); scales as in LSQ (Esser et al.,
Learned Step Size Quantization, 2020). No regularizer, and weights may move by more than one step of the grid.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from onnxq.algorithm import Draft
from onnxq.algorithms.blockwise.learn_blocks import Learning, check_learning, learn_blocks
from onnxq.algorithms.common.parameter_help import LEARNED
from onnxq.errors import OptionError

__all__ = ["HELP", "NAME", "PARAMETERS", "STAGE", "TITLE", "apply", "check"]

NAME = "adaquant"
TITLE = "learn weights, scales and biases of each layer so that it gives what the float one gives (needs torch)"
STAGE = "numbers"
PARAMETERS: Mapping[str, object] = {
    "iterations": 500,
    "batch": 16,
    "lr": 3e-2,
    "scale_lr": 1e-3,
    "bias_lr": 1e-2,
    "drop": 0.0,
    "unit": "layer",
}
HELP: Mapping[str, str] = {
    **LEARNED,
    "iterations": "training steps for each layer (or block), 1 or more",
    "lr": "learning rate of weights, in units of their scale, above 0",
    "unit": "what is trained at a time: layer, or block (several layers up to where branches meet)",
}
_UNITS = ("layer", "block")


def check(*, unit: str, **parameters: float) -> None:
    """Hold parameters against the values they may take; torch must be there.

    Raises:
        OptionError: one is out of range, or torch is missing.
    """
    if unit not in _UNITS:
        raise OptionError(f"unit={unit} is unknown", hint=f"It must be one of {', '.join(_UNITS)}")
    check_learning(**parameters)


def apply(draft: Draft, *, unit: Literal["block", "layer"], **parameters: Any) -> None:
    """Learn the layers (or blocks) of a draft in order.

    Args:
        draft: changed in place; a note says what was done.
        unit: ``"layer"`` or ``"block"``.
        **parameters: the others, see :class:`onnxq.algorithms.blockwise.learn_blocks.Learning`.
    """
    learn_blocks(draft, Learning(NAME, unit, "free", **parameters))
