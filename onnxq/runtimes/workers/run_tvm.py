"""Compile a model in TVM (Relax) for the CPU and run it. Every new set of input shapes is compiled anew."""

from __future__ import annotations

import sys
from typing import Any

from common import Request, serve


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
            module = from_onnx(model, shape_dict=shapes, dtype_dict=types)
            compiled = tvm.compile(module, target=tvm.target.Target("llvm"))
            machines[key] = relax.VirtualMachine(compiled, tvm.cpu())
        results = machines[key]["main"](*(tvm.runtime.tensor(feeds[name]) for name in inputs))
        arrays = [results] if hasattr(results, "numpy") else list(results)
        request.write(index, [array.numpy() for array in arrays])
    return {"outputs": [value.name for value in model.graph.output]}


if __name__ == "__main__":
    sys.exit(serve(version, run))
