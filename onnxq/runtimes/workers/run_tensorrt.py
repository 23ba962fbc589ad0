"""Parse a model with TensorRT-RTX, compile it ahead of time, and say which kernels compute in integers.

``integer`` and ``floating`` name the layers of the parsed network that multiply (``convolution NODE``,
``deconvolution NODE``, ``matrix_multiply NODE``), and the kernels that pool. They go by the compiler's list of kernels:
integer where data and weights are both of 8 bits or less. A layer that has only weights of that kind is named in the
remarks too. Free dimensions take the sizes that the samples have.
"""

from __future__ import annotations

import re
import sys
from typing import Any

from common import Request, serve

NARROW = ("Int8", "Int4", "FP8", "FP4E2M1")
MULTIPLY = ("CONVOLUTION", "DECONVOLUTION", "MATRIX_MULTIPLY")
KERNELS = ("runtime_fusion", "correlation", "convolution", "deconvolution", "gemm")
"""Kinds of kernels that multiply, the surest last; others may be named after a layer of which they prepare a part."""
CAPABILITIES = ("SM75", "SM80", "SM86", "SM89", "SM120", "SM121")
FIRST_WITH = {"FP4": "SM120", "FP8": "SM89"}
"""Types that not all have, and which has them first of those that it compiles for."""
MOST = 8
"""Warnings passed on."""
_DATATYPE = re.compile(r"Datatype: (\w+)")
_LAYER = re.compile(r"\[ONNX Layer: ([^\]]+)\]")
_KERNEL = re.compile(r"Name: (?P<name>.*?), LayerType: (?P<kind>\w+),(?P<operands>.*?)\], Outputs: ")


def version() -> str:
    import tensorrt_rtx_bindings

    return str(tensorrt_rtx_bindings.__version__)


def run(request: Request) -> dict[str, Any]:
    import tensorrt_rtx_bindings as trt

    log: list[str] = []
    problems: list[str] = []

    class Logger(trt.ILogger):  # type: ignore[misc]  # the package has no types
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
    capability = request.options["capability"]
    made = _types_made(network)
    for kind, first in FIRST_WITH.items():
        if getattr(trt.DataType, kind) in made and capability in CAPABILITIES[: CAPABILITIES.index(first)]:
            capability = first
    config.set_compute_capability(getattr(trt.ComputeCapability, capability), 0)
    profile = _profile(builder, network, request)
    if profile is not None:
        config.add_optimization_profile(profile)
    if builder.build_serialized_network(network, config) is None:
        raise SystemExit("\n".join(problems) or "it could not be compiled")
    layers: dict[str, str] = {}
    for layer in (network.get_layer(i) for i in range(network.num_layers)):
        kind = str(layer.type).rsplit(".", 1)[-1]
        if kind in MULTIPLY:
            layers.update(dict.fromkeys(_LAYER.findall(layer.metadata) or [layer.name], kind.lower()))
    report = _read(log, layers)
    report["outputs"] = [network.get_output(i).name for i in range(network.num_outputs)]
    report["remarks"] += [f"compiled for {capability}"] if capability != request.options["capability"] else []
    report["remarks"] += list(dict.fromkeys(problems))[:MOST]
    return report


def _types_made(network: Any) -> set[Any]:
    """Types of the numbers that layers make, constants among them."""
    layers = (network.get_layer(i) for i in range(network.num_layers))
    return {layer.get_output(i).dtype for layer in layers for i in range(layer.num_outputs)}


def _profile(builder: Any, network: Any, request: Request) -> Any:
    """Sizes for the free dimensions of the inputs, from the samples; None where there are none."""
    free = [tensor for tensor in map(network.get_input, range(network.num_inputs)) if any(d < 0 for d in tensor.shape)]
    if not free:
        return None
    feeds = list(request.feeds())
    if not feeds:
        raise SystemExit(f"input {free[0].name!r} has free dimensions: give samples, which tell their sizes")
    profile = builder.create_optimization_profile()
    for tensor in free:
        shapes = [tuple(sample[tensor.name].shape) for sample in feeds]
        least, most = (tuple(map(choose, zip(*shapes, strict=True))) for choose in (min, max))
        profile.set_shape(tensor.name, least, shapes[0], most)
    return profile


def _read(log: list[str], layers: dict[str, str]) -> dict[str, Any]:
    """What the compiler's list of kernels says of the layers that multiply."""
    lines = [line for message in log if message.startswith("Layers:") for line in message.splitlines()[1:]]
    kernels = [found for line in lines if (found := _KERNEL.match(line))]
    if not kernels:
        raise SystemExit("the compiler's log has no list of kernels; another version of TensorRT-RTX?")
    operands = _operands(kernels, layers)
    integer: list[str] = []
    floating: list[str] = []
    for kernel in kernels:
        if "pool" in kernel["kind"].lower():
            (integer if _types(kernel)[:1] == ["Int8"] else floating).append(f"kernel {kernel['name']}")
    rounding = sum("Roun" in kernel["name"] for kernel in kernels)
    remarks = [f"{len(kernels)} kernels, {rounding} of them round to integers"]
    for layer, kind in layers.items():
        if layer not in operands:
            remarks.append(f"{kind} {layer}: computed by the kernel of another layer")
            continue
        types = operands[layer]
        narrow = [t in NARROW for t in types]
        (integer if len(types) == 2 and all(narrow) else floating).append(f"{kind} {layer}")
        if any(narrow) and not all(narrow):
            remarks.append(f"{kind} {layer}: {' x '.join(types)}")
    return {"integer": integer, "floating": floating, "remarks": remarks}


def _operands(kernels: list[re.Match[str]], layers: dict[str, str]) -> dict[str, list[str]]:
    """Layer → the types of its two operands, in the kernel of the kind that tells most of it."""
    found: dict[str, tuple[int, list[str]]] = {}
    for kernel in kernels:
        rank = KERNELS.index(kernel["kind"]) if kernel["kind"] in KERNELS else -1
        for layer in _LAYER.findall(kernel.string[kernel.end() :]):
            if layer in layers and rank > found.get(layer, (-2,))[0]:
                found[layer] = rank, _types(kernel)[:2]
    return {layer: types for layer, (_, types) in found.items()}


def _types(kernel: re.Match[str]) -> list[str]:
    return [str(t) for t in _DATATYPE.findall(kernel["operands"])]


if __name__ == "__main__":
    sys.exit(serve(version, run))
