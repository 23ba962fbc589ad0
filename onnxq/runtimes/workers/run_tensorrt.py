"""Parse a model with TensorRT-RTX, compile it ahead of time, and say which kernels compute in integers.

``integer`` and ``floating`` name the layers of the parsed network that multiply (``convolution NODE``,
``deconvolution NODE``, ``matrix_multiply NODE``) and the kernels that pool, as the compiler's log lists their kernels:
integer where data and weights are both of 4 or 8 bits. Free dimensions take the sizes that the samples have.
"""

from __future__ import annotations

import re
import sys
from typing import Any

from common import Request, serve

NARROW = ("Int8", "Int4", "FP8", "FP4")
MULTIPLY = ("CONVOLUTION", "DECONVOLUTION", "MATRIX_MULTIPLY")
_MOST = 8
"""Warnings passed on."""
_DATATYPE = re.compile(r"Datatype: (\w+)")
_LAYER = re.compile(r"\[ONNX Layer: ([^\]]+)\]")


def version() -> str:
    import tensorrt_rtx_bindings

    return str(tensorrt_rtx_bindings.__version__)


def run(request: Request) -> dict[str, Any]:
    import tensorrt_rtx_bindings as trt

    log: list[str] = []
    problems: list[str] = []

    class Logger(trt.ILogger):
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            log.append(message)
            if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR, trt.ILogger.WARNING):
                problems.append(message)

    logger = Logger()
    builder = trt.Builder(logger)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(request.model)):
        raise SystemExit("\n".join(parser.get_error(i).desc() for i in range(parser.num_errors)))
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    config.num_compute_capabilities = 1
    config.set_compute_capability(getattr(trt.ComputeCapability, request.options["capability"]), 0)
    profile = _profile(builder, network, request)
    if profile is not None:
        config.add_optimization_profile(profile)
    engine = builder.build_serialized_network(network, config)
    if engine is None:
        raise SystemExit("\n".join(problems) or "it could not be compiled")
    layers = [network.get_layer(i) for i in range(network.num_layers)]
    wanted: dict[str, str] = {}
    for layer in layers:
        kind = str(layer.type).rsplit(".", 1)[-1]
        for name in _LAYER.findall(layer.metadata) or [layer.name]:
            if kind in MULTIPLY:
                wanted[name] = kind.lower()
    integer, floating, kernels = _kernels(log, wanted)
    rounds = sum("Roun" in name for name in kernels)
    remarks = [f"{len(kernels)} kernels, {rounds} of them round to integers"]
    listed = {entry.split(" ", 1)[1] for entry in (*integer, *floating)}
    remarks += [f"{name}: computed by the kernel of another layer" for name in wanted if name not in listed]
    return {
        "outputs": [network.get_output(i).name for i in range(network.num_outputs)],
        "integer": integer,
        "floating": floating,
        "remarks": [*remarks, *list(dict.fromkeys(problems))[:_MOST]],
    }


def _profile(builder: Any, network: Any, request: Request) -> Any:
    """Sizes for the free dimensions of the inputs, from the samples; None where there are none."""
    inputs = [network.get_input(i) for i in range(network.num_inputs)]
    free = [i for i in inputs if any(d < 0 for d in i.shape)]
    if not free:
        return None
    feeds = list(request.feeds())
    if not feeds:
        raise SystemExit(f"input {free[0].name!r} has free dimensions: give samples, which tell their sizes")
    profile = builder.create_optimization_profile()
    for tensor in free:
        shapes = [tuple(sample[tensor.name].shape) for sample in feeds]
        least = tuple(map(min, zip(*shapes)))
        most = tuple(map(max, zip(*shapes)))
        profile.set_shape(tensor.name, least, shapes[0], most)
    return profile


def _kernels(log: list[str], wanted: dict[str, str]) -> tuple[list[str], list[str], list[str]]:
    """Layers in integers, layers in float, and the names of all kernels, from the compiler's list."""
    lines = [line for message in log if message.startswith("Layers:") for line in message.splitlines()[1:]]
    names: list[str] = []
    found: dict[str, bool] = {}
    others: dict[str, bool] = {}
    for line in lines:
        if not line.startswith("Name: "):
            continue
        name = line[len("Name: ") :].split(", LayerType: ", 1)[0]
        kind = re.search(r"LayerType: (\w+)", line)
        types = _operands(line)
        names.append(name)
        narrow = len(types) >= 2 and all(t in NARROW for t in types[:2])
        multiplies = kind is not None and kind[1] in ("correlation", "gemm", "convolution", "deconvolution")
        for layer in _LAYER.findall(line):
            if layer in wanted and (multiplies or layer not in found):
                found[layer] = narrow
        if kind is not None and "pool" in kind[1].lower():
            others[f"kernel {name}"] = types[:1] == ["Int8"]
    table = {f"{wanted[layer]} {layer}": narrow for layer, narrow in found.items()} | others
    return [k for k, v in table.items() if v], [k for k, v in table.items() if not v], names


def _operands(line: str) -> list[str]:
    """Data types of inputs, then constants, as the line of a kernel lists them."""
    head = line.split("], Outputs:", 1)[0]
    return [str(t) for t in _DATATYPE.findall(head)]


if __name__ == "__main__":
    sys.exit(serve(version, run))
