"""Operator sets by their domain."""

from __future__ import annotations

__all__ = ["MICROSOFT", "OF_QUANTIZERS", "STANDARD", "TENSORRT"]

STANDARD = ("", "ai.onnx.ml")
"""Those of the ONNX standard."""
MICROSOFT = "com.microsoft"
"""That of onnxruntime's own operators."""
TENSORRT = "trt"
"""That of TensorRT's own operators, as its parser knows it."""
OF_QUANTIZERS = ("", MICROSOFT)
"""Those with a QuantizeLinear and a DequantizeLinear, of which onnxruntime's have 4 and 16 bits at every opset."""
