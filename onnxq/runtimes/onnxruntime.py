"""onnxruntime on a CPU, all graph optimizations on."""

from onnxq.runtimes.runtime import Runtime

RUNTIME = Runtime("onnxruntime", "onnxruntime", ("onnxruntime", "onnx"), options={"optimize": True}, timed=True)
