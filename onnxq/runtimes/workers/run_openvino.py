"""Compile a model in OpenVINO for the CPU, run it, and say which layers compute in integers, and how long it takes.

Options: ``precision``, that of float layers (``"f32"``, or ``"bf16"`` or ``"f16"`` where the CPU has them);
``static``: give the model the shapes of each sample before it is compiled, else free dimensions stay free.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

from common import Request, TooSlowError, best_times, first_line, serve

INTEGER = frozenset({"i8", "u8", "i4", "u4"})
NO_ARITHMETIC = frozenset({"Input", "Output", "Parameter", "Result", "Reorder", "FakeQuantize"})
"""Layer types that hold or convert numbers."""


def version() -> str:
    import openvino

    return str(openvino.__version__)


def run(request: Request) -> dict[str, Any]:
    import openvino

    core = openvino.Core()
    model = core.read_model(request.model)
    names = [output.get_any_name() for output in model.outputs]
    config = {"INFERENCE_PRECISION_HINT": request.options["precision"], "PERFORMANCE_HINT": "LATENCY"}
    compiled, shapes = None, None
    for index, feeds in enumerate(request.feeds()):
        wanted = {name: list(array.shape) for name, array in feeds.items()}
        if compiled is None or (request.options["static"] and wanted != shapes):
            if request.options["static"]:
                model.reshape(wanted)
            compiled, shapes = core.compile_model(model, "CPU", config), wanted
        results = compiled(feeds)
        request.write(index, [results[k] for k in range(len(names))])
    if compiled is None:
        compiled = core.compile_model(model, "CPU", config)
    return {"outputs": names, **layers(compiled), **timed(request)}


def timed(request: Request) -> dict[str, Any]:
    """How long a run takes, beside that of another model, as OpenVINO runs them by itself but for one thread."""
    import openvino

    if request.beside is None:
        return {}
    core, feeds = openvino.Core(), next(request.feeds())
    config = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": 1}
    try:
        compiled = [core.compile_model(str(path), "CPU", config) for path in (request.beside, request.model)]
        times = best_times(*(partial(one.create_infer_request().infer, feeds) for one in compiled))
    except (RuntimeError, TooSlowError) as error:
        return {"remarks": [f"not timed: {first_line(error)}"]}
    precision = compiled[0].get_property("INFERENCE_PRECISION_HINT").get_type_name()
    return {"times": times, "timed": f"float layers in {precision}, as OpenVINO chooses on this processor"}


def layers(compiled: Any) -> dict[str, list[str]]:
    """The layers of what was compiled, as ``TYPE NAME [precision, kernel]``, by whether they compute in integers."""
    integer: list[str] = []
    floating: list[str] = []
    constant: set[str] = set()
    for node in compiled.get_runtime_model().get_ordered_ops():
        about = {key: str(value.astype(str)) for key, value in node.get_rt_info().items()}
        kind, precision = about.get("layerType", "?"), about.get("runtimePrecision", "?").lower()
        name = node.get_friendly_name()
        sources = {value.get_node().get_friendly_name() for value in node.input_values()}
        if kind == "Const" or (sources and sources <= constant):
            constant.add(name)  # computed once, when the model is compiled
            continue
        if kind in NO_ARITHMETIC:
            continue
        line = f"{kind} {about.get('originalLayersNames') or name}"
        line += f" [{precision}, {about.get('primitiveType', '?')}]"
        (integer if precision in INTEGER else floating).append(line)
    return {"integer": integer, "floating": floating}


if __name__ == "__main__":
    sys.exit(serve(version, run))
