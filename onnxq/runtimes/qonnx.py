"""The package qonnx, which FINN and hls4ml are built on: node by node, Quant by its own code, the rest in onnxruntime."""

from onnxq.runtimes.runtime import Runtime

RUNTIME = Runtime("qonnx", "QONNX", ("qonnx",))
