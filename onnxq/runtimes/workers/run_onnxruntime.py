"""Load a model in onnxruntime, run it, and say which operators compute in integers, and how long it takes."""

from __future__ import annotations

import ctypes
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from common import Request, best_times, first_line, serve

INTEGER = (
    *("QLinear", "QGemm", "QAttention", "ConvInteger", "MatMulInteger", "DynamicQuantize", "NhwcMaxPool"),
    *("MatMulNBits", "GatherBlockQuantized", "QMoE"),
)
RAW = {
    "tensor(bfloat16)": ("bfloat16", 16),
    "tensor(float8e4m3fn)": ("float8_e4m3fn", 17),
    "tensor(float8e4m3fnuz)": ("float8_e4m3fnuz", 18),
    "tensor(float8e5m2)": ("float8_e5m2", 19),
    "tensor(float8e5m2fnuz)": ("float8_e5m2fnuz", 20),
}
"""Types that onnxruntime takes and gives as bytes only → name in ml_dtypes, number in ONNX."""


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
    names, kinds = [o.name for o in session.get_outputs()], {i.name: i.type for i in session.get_inputs()}
    barred = any(v.type in RAW for v in (*session.get_inputs(), *session.get_outputs()))
    for index, feeds in enumerate(request.feeds()):
        if barred:
            values = {name: to_value(array, kinds[name]) for name, array in feeds.items()}
            request.write(index, [to_array(value) for value in session.run_with_ort_values(names, values)])
        else:
            request.write(index, session.run(None, feeds))
    integer: list[str] = []
    floating: list[str] = []
    for node in optimized.graph.node:
        if node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
            (integer if node.op_type.startswith(INTEGER) else floating).append(f"{node.op_type} {node.name}")
    return {"outputs": names, "integer": integer, "floating": floating, **({} if barred else timed(request))}


def timed(request: Request) -> dict[str, Any]:
    """How long a run takes, beside that of another model, on one thread."""
    import onnxruntime

    if request.beside is None or not request.options["optimize"]:
        return {}
    options, feeds = onnxruntime.SessionOptions(), next(request.feeds())
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    try:
        both = [
            onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            for path in (request.beside, request.model)
        ]
        times = best_times(*(partial(session.run, None, feeds) for session in both))
    except Exception as error:  # those of onnxruntime share no base; its optimizations may break the float model
        return {"remarks": [f"not timed: {first_line(error)}"]}
    return {"times": times}


def to_value(array: Any, kind: str) -> Any:
    """An OrtValue of an array; one of the types above is rounded to from float32."""
    import ml_dtypes
    import onnxruntime

    if kind not in RAW:
        return onnxruntime.OrtValue.ortvalue_from_numpy(array)
    name, number = RAW[kind]
    held = array.astype(getattr(ml_dtypes, name), order="C")
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(held.view(f"u{held.itemsize}"), number)


def to_array(value: Any) -> Any:
    """The array in an OrtValue; one of the types above as float32."""
    import ml_dtypes

    if value.data_type() not in RAW:
        return value.numpy()
    raw = np.dtype(getattr(ml_dtypes, RAW[value.data_type()][0]))
    shape = tuple(value.shape())
    size = raw.itemsize * int(np.prod(shape))
    memory = (ctypes.c_uint8 * size).from_address(value.data_ptr()) if size else b""
    return np.frombuffer(memory, raw).reshape(shape).astype(np.float32)


if __name__ == "__main__":
    sys.exit(serve(version, run))
