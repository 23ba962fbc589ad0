"""Run a model with the package qonnx, node by node. Shapes are inferred anew for every new set of input shapes."""

from __future__ import annotations

import sys
from importlib.metadata import version as version_of
from typing import Any

from common import RefusedError, Request, first_line, serve


def version() -> str:
    import qonnx.core.onnx_exec  # noqa: F401

    return version_of("qonnx")


def run(request: Request) -> dict[str, Any]:
    import onnx
    from qonnx.core.modelwrapper import ModelWrapper
    from qonnx.core.onnx_exec import execute_onnx
    from qonnx.transformation.infer_shapes import InferShapes

    model = onnx.load(request.model)
    names = [value.name for value in model.graph.output]
    made: dict[Any, Any] = {}
    for index, feeds in enumerate(request.feeds()):
        key = tuple(array.shape for array in feeds.values())
        try:
            if key not in made:
                made[key] = ModelWrapper(model, make_deepcopy=True)
                for name, array in feeds.items():
                    made[key].set_tensor_shape(name, array.shape)
                made[key] = made[key].transform(InferShapes())
            results = execute_onnx(made[key], feeds)
        except Exception as error:
            raise RefusedError(f"it does not run it: {first_line(error)}") from error
        request.write(index, [results[name] for name in names])
    return {"outputs": names}


if __name__ == "__main__":
    sys.exit(serve(version, run))
