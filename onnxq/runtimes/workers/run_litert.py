"""Run a TensorFlow Lite model in LiteRT's interpreter, and say which of its operators compute in integers.

Options: ``reference``, whether its plain kernels compute, in place of XNNPACK's and others that are fast.

A model has fixed sizes. Samples of several rows go through one of a single row one by one.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
from typing import Any

import numpy as np
from common import RefusedError, Request, SamplesError, TooSlowError, best_times, serve

NO_ARITHMETIC = frozenset({"DEQUANTIZE", "QUANTIZE", "DELEGATE"})
RANGED_AT_RUN = frozenset({"CONV_2D", "FULLY_CONNECTED"})
"""Operators whose kernels make integers of floats where the weights are some, and multiply those."""


def version() -> str:
    import ai_edge_litert.interpreter  # noqa: F401

    return importlib.metadata.version("ai-edge-litert")


def run(request: Request) -> dict[str, Any]:
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    kinds = OpResolverType.BUILTIN_REF if request.options["reference"] else OpResolverType.AUTO
    path = str(request.model.with_suffix(".tflite"))
    try:
        plain = Interpreter(path, experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES)
        operators = operators_of(plain)
        interpreter = Interpreter(path, experimental_op_resolver_type=kinds, num_threads=1)
        interpreter.allocate_tensors()
    except (RuntimeError, ValueError) as error:
        raise RefusedError(str(error)) from error
    runner = interpreter.get_signature_runner()
    inputs, outputs = runner.get_input_details(), runner.get_output_details()
    coded = integers_for_floats(path)
    if unknown := set(request.inputs) - set(inputs):
        raise RefusedError(f"its inputs are {', '.join(inputs)}, and the model beside it has {', '.join(unknown)}")
    for index, feeds in enumerate(request.feeds()):
        given = {name: quantized(array, inputs[name]) if name in coded else array for name, array in feeds.items()}
        made = [computed(runner, row) for row in rows(given, inputs)]
        made = [{n: real(a, outputs[n]) if n in coded else a for n, a in one.items()} for one in made]
        request.write(index, [together(name, [one[name] for one in made]) for name in outputs])
    return {"outputs": list(outputs), **operators, **timed(request, coded)}


def timed(request: Request, coded: list[str]) -> dict[str, Any]:
    """How long a run takes, beside that of the float model, on one thread."""
    from ai_edge_litert.interpreter import Interpreter

    if request.beside is None:
        return {}
    runs = []
    for path in (request.beside, request.model):
        interpreter = Interpreter(str(path.with_suffix(".tflite")), num_threads=1)
        interpreter.allocate_tensors()
        inputs = {detail["name"]: detail for detail in interpreter.get_input_details()}
        feeds = {
            name: quantized(array, inputs[name]) if path == request.model and name in coded else array
            for name, array in next(request.feeds()).items()
        }
        for name, array in rows(feeds, inputs)[0].items():
            interpreter.set_tensor(inputs[name]["index"], array)
        runs.append(interpreter.invoke)
    try:
        return {"times": best_times(*runs)}
    except TooSlowError as error:
        return {"remarks": [f"not timed: {error}"]}


def integers_for_floats(path: str) -> list[str]:
    """Inputs and outputs that are integers here and floats in the model that was translated: its description says."""
    from ai_edge_litert import schema_py_generated as schema

    with open(path, "rb") as file:
        said = (schema.Model.GetRootAs(file.read()).Description() or b"").decode()
    return [str(name) for name in json.loads(said[said.index("[") :])] if "[" in said else []


def quantized(array: Any, detail: dict[str, Any]) -> Any:
    """Floats as the integers of an input."""
    scale, zero = detail["quantization"]
    limits = np.iinfo(detail["dtype"])
    return np.clip(np.rint(array / np.float32(scale)) + zero, limits.min, limits.max).astype(detail["dtype"])


def real(array: Any, detail: dict[str, Any]) -> Any:
    """What integers of an output stand for."""
    scale, zero = detail["quantization"]
    return (array.astype(np.float32) - zero) * np.float32(scale)


def computed(runner: Any, feeds: dict[str, Any]) -> dict[str, Any]:
    try:
        return dict(runner(**feeds))
    except (RuntimeError, ValueError) as error:
        raise RefusedError(str(error)) from error


def rows(feeds: dict[str, Any], inputs: dict[str, Any]) -> list[dict[str, Any]]:
    """A sample as the model takes it: as it is, or row by row where that takes one row of some inputs."""
    wanted = {name: tuple(map(int, inputs[name]["shape"])) for name in feeds}
    several = [name for name, shape in wanted.items() if feeds[name].shape != shape]
    if not several:
        return [feeds]
    counts = {feeds[name].shape[:1] for name in several}
    single = all(wanted[name][:1] == (1,) and feeds[name].shape[1:] == wanted[name][1:] for name in several)
    if len(counts) != 1 or not single:
        sizes = ", ".join(f"{name!r} {feeds[name].shape} for {wanted[name]}" for name in several)
        raise SamplesError(f"they are of other sizes than the model: {sizes}")
    (count,) = counts.pop()
    return [{n: a[k : k + 1] if n in several else a for n, a in feeds.items()} for k in range(count)]


def together(name: str, made: list[Any]) -> Any:
    """An output of all rows of a sample."""
    if len(made) > 1 and made[0].shape[:1] != (1,):
        raise SamplesError(f"of samples of several rows output {name!r} has no rows, but {made[0].shape}")
    return np.concatenate(made) if len(made) > 1 else made[0]


def operators_of(interpreter: Any) -> dict[str, list[str]]:
    """Operators by what they compute in, named by the tensor that they make."""
    types = {detail["index"]: detail["dtype"] for detail in interpreter.get_tensor_details()}
    names = {detail["index"]: detail["name"] for detail in interpreter.get_tensor_details()}
    integer, floating = [], []
    for operator in interpreter._get_ops_details():
        kind, made = operator["op_name"], operator["outputs"][0]
        if kind in NO_ARITHMETIC:
            continue
        read = [types[k] for k in operator["inputs"] if k >= 0]
        if kind in RANGED_AT_RUN and read[1] == np.int8:
            integer.append(f"{kind} {names[made]}")
        elif np.float32 in read or types[made] == np.float32:
            floating.append(f"{kind} {names[made]}")
        elif {np.int8, np.int16} & {*read, types[made]}:
            integer.append(f"{kind} {names[made]}")
    return {"integer": integer, "floating": floating}


if __name__ == "__main__":
    sys.exit(serve(version, run))
