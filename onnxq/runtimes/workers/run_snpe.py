"""Let aimet-onnx make a QDQ model of a float model and its encodings file, and run that in onnxruntime."""

from __future__ import annotations

import sys
from typing import Any

from common import Request, serve


def version() -> str:
    import aimet_onnx

    return str(aimet_onnx.__version__)


def run(request: Request) -> dict[str, Any]:
    import onnx
    import onnxruntime
    from aimet_onnx.quantsim import encodings_to_onnx_qdq

    encodings = request.model.with_suffix(".encodings")
    model = encodings_to_onnx_qdq(str(request.model), str(encodings), prequantize_constants=True)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    for index, feeds in enumerate(request.feeds()):
        request.write(index, session.run(None, feeds))
    return {"outputs": [o.name for o in session.get_outputs()], **kinds(model, onnx)}


def kinds(model: Any, onnx: Any) -> dict[str, list[str]]:
    """Operators behind whose outputs stands a quantizer, and those without."""
    quantized = {node.input[0] for node in model.graph.node if node.op_type == "QuantizeLinear"}
    found: dict[str, list[str]] = {"integer": [], "floating": []}
    for node in model.graph.node:
        if node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
            found["integer" if quantized & set(node.output) else "floating"].append(f"{node.op_type} {node.name}")
    return found


if __name__ == "__main__":
    sys.exit(serve(version, run))
