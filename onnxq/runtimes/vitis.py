"""amd-quark's rules for the NPU, and onnxruntime: AMD's own code must find nothing to change in an XINT8 model."""

from onnxq.runtimes.runtime import Runtime

RUNTIME = Runtime("vitis", "AMD Quark (NPU rules)", ("torch==2.13.0", "amd-quark", "onnx", "onnxruntime"))
