"""OpenVINO on a CPU, in float32 wherever nothing is quantized, so that numbers compare."""

from onnxq.runtimes.runtime import Runtime

RUNTIME = Runtime("openvino", "OpenVINO", ("openvino",), options={"precision": "f32", "static": False}, timed=True)
