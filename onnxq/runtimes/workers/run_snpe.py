"""Let aimet-onnx make a QDQ model of a float model and its encodings file, and run that in onnxruntime."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

from common import Request, serve

ABSORBED = ("Clip", "Relu")
"""Activation functions that converters compute with the operator in front of them."""
FLOATS = (1, 10, 11, 16)
"""Float types of ``onnx.TensorProto``: float, float16, double, bfloat16."""


def version() -> str:
    import aimet_onnx

    return str(aimet_onnx.__version__)


def run(request: Request) -> dict[str, Any]:
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
    return {"outputs": [o.name for o in session.get_outputs()], **kinds(model)}


def kinds(model: Any) -> dict[str, list[str]]:
    """Operators behind whose outputs stands a quantizer, the activation function they absorb aside, and the others.

    Among those are they that read a weight in float, an LSTM, say: the quantizer behind it is that of its readers.
    """
    weights = {tensor.name for tensor in model.graph.initializer if tensor.data_type in FLOATS and len(tensor.dims) > 1}
    quantized = {node.input[0] for node in model.graph.node if node.op_type == "QuantizeLinear"}
    readers = Counter(name for node in model.graph.node for name in node.input)
    readers.update(output.name for output in model.graph.output)
    for node in model.graph.node:
        if node.op_type in ABSORBED and node.output[0] in quantized and readers[node.input[0]] == 1:
            quantized.add(node.input[0])
    found: dict[str, list[str]] = {"integer": [], "floating": []}
    for node in model.graph.node:
        if node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
            whole = quantized & set(node.output) and not weights & set(node.input)
            found["integer" if whole else "floating"].append(f"{node.op_type} {node.name}")
    return found


if __name__ == "__main__":
    sys.exit(serve(version, run))
