"""Load a model in onnxruntime, run it, and say which operators of the optimized graph compute in integers."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from common import Request, serve

INTEGER = (
    *("QLinear", "QGemm", "QAttention", "ConvInteger", "MatMulInteger", "DynamicQuantize", "NhwcMaxPool"),
    *("MatMulNBits", "GatherBlockQuantized", "QMoE"),
)


def version() -> str:
    import onnxruntime

    return str(onnxruntime.__version__)


def run(request: Request) -> dict[str, Any]:
    import onnx
    import onnxruntime

    options = onnxruntime.SessionOptions()
    level = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if request.options["optimize"] else level.ORT_DISABLE_ALL
    options.log_severity_level = 3
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = str(Path(folder) / "optimized.onnx")
        session = onnxruntime.InferenceSession(str(request.model), options, providers=["CPUExecutionProvider"])
        optimized = onnx.load(options.optimized_model_filepath, load_external_data=False)
    for index, feeds in enumerate(request.feeds()):
        request.write(index, session.run(None, feeds))
    integer: list[str] = []
    floating: list[str] = []
    for node in optimized.graph.node:
        if node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
            (integer if node.op_type.startswith(INTEGER) else floating).append(f"{node.op_type} {node.name}")
    return {"outputs": [o.name for o in session.get_outputs()], "integer": integer, "floating": floating}


if __name__ == "__main__":
    sys.exit(serve(version, run))
