"""AdaQuant: weights, their scales, activation scales and biases learned by gradient, layer by layer or by block.

Weights move freely behind a rounding through which gradients pass straight (Hubara et al., Improving Post Training
Neural Quantization: Layer-wise Calibration and Integer Programming, 2020, section 3.1); scales as in LSQ (Esser et al.,
Learned Step Size Quantization, 2020). No regularizer, and weights may move by more than one step of the grid.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

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


def apply(
    draft: Draft,
    *,
    iterations: int,
    batch: int,
    lr: float,
    scale_lr: float,
    bias_lr: float,
    drop: float,
    unit: str,
) -> None:
    """Learn the layers (or blocks) of a draft in order.

    Args:
        draft: changed in place; a note says what was done.
        iterations: steps for each layer.
        batch: samples in a step.
        lr: step of weights, in units of their scale.
        scale_lr: step of the logarithm of scales; 0 leaves them alone.
        bias_lr: step of biases, in units of the noise that rounding makes; 0 leaves them alone.
        drop: share of the activations that are not quantized in a step, in blocks that have some below 8 bits.
        unit: ``"layer"`` or ``"block"``.
    """
    kind: Literal["block", "layer"] = "block" if unit == "block" else "layer"
    learn_blocks(draft, Learning(NAME, kind, "free", iterations, batch, lr, scale_lr, bias_lr, drop, 0.0, 0.0))
