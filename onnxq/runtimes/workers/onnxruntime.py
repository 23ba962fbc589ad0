"""Load a model in onnxruntime, run it, and say which operators of the optimized graph compute in integers."""

import json
import sys
import tempfile
from pathlib import Path

INTEGER = (
    "QLinear",
    "QGemm",
    "ConvInteger",
    "MatMulInteger",
    "DynamicQuantize",
    "NhwcMaxPool",
    "MatMulNBits",
    "QAttention",
)


def main() -> int:
    sys.path.pop(0)  # this folder holds scripts named like the packages they drive
    try:
        import numpy as np
        import onnx
        import onnxruntime
    except ImportError as error:
        print(error, file=sys.stderr)
        return 3
    if sys.argv[1] == "--version":
        print(onnxruntime.__version__)
        return 0
    request = json.loads(Path(sys.argv[1]).read_text())
    results = Path(request["results"])
    options = onnxruntime.SessionOptions()
    level = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if request["options"]["optimize"] else level.ORT_DISABLE_ALL
    options.log_severity_level = 3
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = str(Path(folder) / "optimized.onnx")
        session = onnxruntime.InferenceSession(request["model"], options, providers=["CPUExecutionProvider"])
        optimized = onnx.load(options.optimized_model_filepath, load_external_data=False)
    outputs = [output.name for output in session.get_outputs()]
    for index, path in enumerate(request["samples"]):
        with np.load(path, allow_pickle=False) as arrays:
            feeds = {name: arrays[str(k)] for k, name in enumerate(request["inputs"])}
        got = session.run(None, feeds)
        np.savez(results / f"{index}.npz", **{str(k): array for k, array in enumerate(got)})
    integer, floating = [], []
    for node in optimized.graph.node:
        if node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
            (integer if node.op_type.startswith(INTEGER) else floating).append(f"{node.op_type} {node.name}")
    report = {
        "version": onnxruntime.__version__,
        "outputs": outputs,
        "integer": integer,
        "floating": floating,
    }
    (results / "report.json").write_text(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
