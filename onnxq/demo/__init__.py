"""``onnxq demo``: a small real model and real data, quantized and measured."""
