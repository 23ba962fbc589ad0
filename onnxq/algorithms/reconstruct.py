"""Block reconstruction: rounding, biases and activation scales learned block by block on the samples.

BRECQ (Li et al., Pushing the Limit of Post-Training Quantization by Block Reconstruction, 2021) with AdaRound's weights
(Nagel et al., Up or Down?, 2020) and QDrop (Wei et al., Randomly Dropping Quantization, 2022; ``drop=0``: without).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onnxq.algorithm import Draft
from onnxq.algorithms.blockwise.learn_blocks import Learning, learn_blocks
from onnxq.algorithms.blockwise.learn_blocks import check_learning as check
from onnxq.algorithms.common.parameter_help import LEARNED

__all__ = ["HELP", "NAME", "PARAMETERS", "STAGE", "TITLE", "apply", "check", "seconds"]

NAME = "reconstruct"
TITLE = "learn the rounding, biases and scales of each block so that it gives what the float one gives (needs torch)"
STAGE = "numbers"
_ITERATIONS, _BATCH = 500, 16
PARAMETERS: Mapping[str, object] = {
    "iterations": _ITERATIONS,
    "batch": _BATCH,
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


_OF_A_MAC = 0.75e-9
"""Seconds of a multiply-accumulate of a sample in a step, forwards and back, on one thread (AVX-512, torch 2.13):
.74e-9 in EfficientNet-Lite0 and a small ViT, .25 to .45e-9 in small convolutional nets, 4e-9 in a PatchTST, most of
whose work is not in its weights."""


def seconds(macs: int) -> float:
    """About how long it takes with its defaults, on one thread: right to a factor of three for convolutional nets.

    Args:
        macs: multiply-accumulates of the model for one sample.
    """
    return _ITERATIONS * _BATCH * macs * _OF_A_MAC


def apply(draft: Draft, **parameters: Any) -> None:
    """Reconstruct the blocks of a draft in order.

    Args:
        draft: changed in place; a note says what was done.
        **parameters: all of them, see :class:`onnxq.algorithms.blockwise.learn_blocks.Learning`.
    """
    learn_blocks(draft, Learning(NAME, "block", "round", **parameters))
