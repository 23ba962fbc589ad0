"""The package qonnx, which FINN and hls4ml build on: node by node, Quant in its own code, all else in onnxruntime."""

from onnxq.runtimes.runtime import Runtime

RUNTIME = Runtime("qonnx", "QONNX", ("qonnx",))
