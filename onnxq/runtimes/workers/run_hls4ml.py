"""Convert a model with hls4ml, compile the C++ that it writes, and run that."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from importlib.metadata import version as version_of
from typing import Any

import numpy as np
from common import RefusedError, Request, first_line, serve


def version() -> str:
    import hls4ml  # noqa: F401

    return version_of("hls4ml")


def run(request: Request) -> dict[str, Any]:
    import onnx

    model = onnx.load(request.model)
    constants = {tensor.name for tensor in model.graph.initializer}
    inputs = [value.name for value in model.graph.input if value.name not in constants]
    names = [value.name for value in model.graph.output]
    made: Any = None
    shapes: list[Any] = []
    for index, feeds in enumerate(request.feeds()):
        try:
            with said_aside():
                if made is None:
                    made, shapes = compiled(model, {name: feeds[name].shape for name in inputs}, request.options)
                arrays = [np.ascontiguousarray(feeds[name]) for name in inputs]
                results = made.predict(arrays if len(arrays) > 1 else arrays[0])
        except Exception as error:
            raise RefusedError(f"it does not convert it: {first_line(error)}") from error
        results = results if len(names) > 1 else [results]
        request.write(index, [np.reshape(array, shape) for array, shape in zip(results, shapes, strict=True)])
    return {"outputs": names}


def compiled(model: Any, sizes: dict[str, tuple[int, ...]], options: dict[str, Any]) -> tuple[Any, list[Any]]:
    """The model as hls4ml computes it, and the shapes of its outputs.

    A new ModelWrapper gives initializers the shapes that hls4ml asks for.
    """
    import hls4ml
    from qonnx.core.modelwrapper import ModelWrapper
    from qonnx.transformation.channels_last import ConvertToChannelsLastAndClean
    from qonnx.transformation.gemm_to_matmul import GemmToMatMul
    from qonnx.util.cleanup import cleanup_model

    wrapped = ModelWrapper(model)
    for name, shape in sizes.items():
        wrapped.set_tensor_shape(name, shape)
    wrapped = ModelWrapper(cleanup_model(wrapped).model)
    shapes = [wrapped.get_tensor_shape(value.name) for value in wrapped.graph.output]
    wrapped = wrapped.transform(ConvertToChannelsLastAndClean()).transform(GemmToMatMul())
    wrapped = ModelWrapper(cleanup_model(ModelWrapper(wrapped.model)).model)
    config = hls4ml.utils.config.config_from_onnx_model(
        wrapped, granularity="name", backend="Vitis", default_precision=options["precision"]
    )
    folder = tempfile.TemporaryDirectory(prefix="hls4ml-")  # removed with what is compiled in it
    made = hls4ml.converters.convert_from_onnx_model(
        wrapped, output_dir=folder.name, io_type=options["io_type"], backend="Vitis", hls_config=config
    )
    made.compile()
    made.folder = folder
    return made, shapes


@contextlib.contextmanager
def said_aside() -> Any:
    """What is written to stdout, by programs that are called as well, is not read by anybody."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


if __name__ == "__main__":
    sys.exit(serve(version, run))
