"""Compile a model in TVM (Relax) for the CPU and run it. Every new set of input shapes is compiled anew."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from typing import Any

from common import RefusedError, Request, serve

_MOST = 300
"""Characters of what TVM says."""


def version() -> str:
    import tvm

    return str(tvm.__version__)


def run(request: Request) -> dict[str, Any]:
    import onnx
    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    model = onnx.load(request.model)
    constants = {tensor.name for tensor in model.graph.initializer}
    inputs = [value.name for value in model.graph.input if value.name not in constants]
    machines: dict[Any, Any] = {}
    for index, feeds in enumerate(request.feeds()):
        shapes = {name: list(feeds[name].shape) for name in inputs}
        key = tuple(map(tuple, shapes.values()))
        if key not in machines:
            types = {name: str(feeds[name].dtype) for name in inputs}
            said = io.StringIO()
            try:
                with contextlib.redirect_stdout(said):
                    module = from_onnx(model, shape_dict=shapes, dtype_dict=types)
            except Exception as error:
                operator = re.search(r"Error converting operator (\w+)", said.getvalue())
                what = f" on {operator[1]}" if operator else ""
                raise RefusedError(f"its ONNX importer fails{what}: {_shortly(error)}") from error
            try:
                compiled = tvm.compile(module, target=tvm.target.Target("llvm"))
            except Exception as error:
                what = "it reads the model, and cannot compile it, as of sizes that are found while it runs"
                raise RefusedError(f"{what}: {_shortly(error)}") from error
            machines[key] = relax.VirtualMachine(compiled, tvm.cpu())
        results = machines[key]["main"](*(tvm.runtime.tensor(feeds[name]) for name in inputs))
        one = hasattr(results, "numpy") or isinstance(results, tvm.runtime.ShapeTuple)
        request.write(index, [_array(value) for value in ([results] if one else results)])
    return {"outputs": [value.name for value in model.graph.output]}


def _array(value: Any) -> Any:
    """A tensor as numpy has it; what a Shape gives is a tuple of integers in TVM."""
    import numpy as np

    return value.numpy() if hasattr(value, "numpy") else np.asarray(list(value), np.int64)


def _shortly(error: Exception) -> str:
    """What an exception says, without TVM's own traceback in front of it."""
    lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith((" ", "Traceback"))]
    text = " ".join(" ".join(lines).split()) or type(error).__name__
    return text if len(text) <= _MOST else f"{text[:_MOST]} ..."


if __name__ == "__main__":
    sys.exit(serve(version, run))
