"""Renderings of a :class:`~onnxq.quantized.Quantized` as ONNX, and the way back."""
