"""Block reconstruction: rounding, biases and activation scales learned block by block on the samples.

BRECQ (Li et al., Pushing the Limit of Post-Training Quantization by Block Reconstruction, 2021) with AdaRound's weights
(Nagel et al., Up or Down?, 2020) and QDrop (Wei et al., Randomly Dropping Quantization, 2022; ``drop=0``: without).
"""

from __future__ import annotations

from collections.abc import Mapping

from onnxq.algorithm import Draft
from onnxq.algorithms.blockwise.learn_blocks import Learning, check_learning, learn_blocks
from onnxq.algorithms.common.parameter_help import LEARNED

__all__ = ["HELP", "NAME", "PARAMETERS", "STAGE", "TITLE", "apply", "check"]

NAME = "reconstruct"
TITLE = "learn the rounding, biases and scales of each block so that it gives what the float one gives (needs torch)"
STAGE = "numbers"
PARAMETERS: Mapping[str, object] = {
    "iterations": 500,
    "batch": 16,
    "lr": 3e-2,
    "scale_lr": 1e-3,
    "bias_lr": 1e-2,
    "drop": 0.5,
    "warmup": 0.2,
    "regularize": 100.0,
}
HELP: Mapping[str, str] = {
    **LEARNED,
    "iterations": "training steps for each block, 1 or more",
    "lr": "learning rate of what decides whether a weight is rounded up or down, above 0",
    "warmup": "share of the training steps before weights are driven to one side of the rounding, 0 to 0.99",
    "regularize": "how strongly weights are driven to one side of the rounding, relative to the gradient of the error, "
    "0 or more",
}


def check(**parameters: float) -> None:
    """Hold parameters against the values they may take; torch must be there.

    Raises:
        OptionError: one is out of range, or torch is missing.
    """
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
    warmup: float,
    regularize: float,
) -> None:
    """Reconstruct the blocks of a draft in order.

    Args:
        draft: changed in place; a note says what was done.
        iterations: steps for each block.
        batch: samples in a step.
        lr: step of what decides the rounding.
        scale_lr: step of the logarithm of activation scales; 0 leaves them alone.
        bias_lr: step of biases, in units of the noise that rounding makes; 0 leaves them alone.
        drop: share of the activations that are not quantized in a step, in blocks that have some below 8 bits.
        warmup: share of the iterations without regularizer.
        regularize: strength of the regularizer, relative to the gradient of the error.
    """
    learning = Learning(
        NAME, "block", "round", iterations, batch, lr, scale_lr, bias_lr, drop, warmup, regularize
    )  # fmt: skip
    learn_blocks(draft, learning)
