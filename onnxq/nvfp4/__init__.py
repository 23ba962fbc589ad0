"""NVFP4: products of 4-bit floating-point numbers in blocks of 16, for TensorRT on Blackwell GPUs.

Weights are found, learned and streamed as :mod:`onnxq.weight_only` does it.
"""

from onnxq.nvfp4.pipeline import quantize_nvfp4

__all__ = ["quantize_nvfp4"]
