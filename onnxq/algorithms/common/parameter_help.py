"""What parameters of algorithms mean, in a sentence each: of those that several share, and of all of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnxq.algorithm import Algorithm

__all__ = ["LAYERWISE", "LEARNED", "parameter_help"]

LAYERWISE: Mapping[str, str] = {
    "damping": "share of the mean second moment of a layer's inputs that is added to each of them, 0 to 1: more keeps "
    "the rounding from fitting the samples too closely",
    "prefix": "true: each layer learns from what the quantized layers before it give, and makes up for their error and "
    "for that of what is added to its output as far as it can; false: from what the float layers give",
    "bias": "true: the layer's own bias takes up the mean error that is left; false: biases stay as they are",
}
"""Of algorithms that solve one layer at a time by the second moments of its inputs."""

LEARNED: Mapping[str, str] = {
    "batch": "samples in a training step, 1 or more",
    "scale_lr": "learning rate of scales, on their logarithm, 0 or more; 0 leaves them unchanged",
    "bias_lr": "learning rate of biases, in units of the noise that rounding makes, 0 or more; 0 leaves them unchanged",
    "drop": "share of activations that stay unquantized in a training step, 0 to 0.99; only where some have fewer than "
    "8 bits",
}
"""Of algorithms that train."""


def parameter_help(algorithm: Algorithm) -> dict[str, str]:
    """What each parameter of an algorithm means, in a sentence; empty where its package does not say."""
    said = getattr(algorithm, "HELP", {})
    return {key: str(said.get(key, "")) if isinstance(said, Mapping) else "" for key in algorithm.PARAMETERS}
