"""TVM (Relax), compiled for the CPU: an interpreter of a model's Q/DQ semantics, with no integer kernels of its own."""

from onnxq.runtimes.runtime import Runtime

RUNTIME = Runtime("tvm", "Apache TVM", ("apache-tvm", "onnx"))
