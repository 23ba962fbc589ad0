"""Weights stored as integers in blocks, activations left float: for transformers, whose time and size are weights.

Models above 2 GB are streamed: at any time one layer is in memory.
"""

from onnxq.weight_only.pipeline import quantize_weights
from onnxq.weight_only.recipe import Recipe

__all__ = ["Recipe", "quantize_weights"]
