"""Convert a model with pnnx, quantize it by the table beside it as ncnn2int8 does, and run it in ncnn.

pnnx names layers its own way. Which of them is which of the table's is found by a second conversion, in which the
weights of every layer of the table are a number of its own.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from common import RefusedError, Request, serve
from ncnn_files import KINDS, Layer, quantize, read_layers, requantize, write_layers

SUFFIX = "_param_0"
STEP = 2.0**-20
"""Between the numbers that stand for layers, from 1 on: exact in float32."""
TYPES = {"float32": "f32", "float16": "f16", "float64": "f64", "int32": "i32", "int64": "i64"}
"""How pnnx calls the types of inputs."""


def version() -> str:
    import ncnn
    import onnx  # noqa: F401

    if importlib.util.find_spec("pnnx") is None:
        raise ImportError("No module named 'pnnx'")
    return f"{ncnn.__version__} (pnnx {importlib.metadata.version('pnnx')})"


def run(request: Request) -> dict[str, Any]:
    import onnx

    model = onnx.load(str(request.model))
    scales = read_table(request.model.with_suffix(".table"))
    feeds = list(request.feeds())
    shapes = shapes_of(model, feeds[0] if feeds else {})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script = convert(model, folder / "plain", shapes)
        layers = read_layers(folder / "plain" / "m.ncnn.param", folder / "plain" / "m.ncnn.bin")
        number_weights(model, list(scales))
        convert(model, folder / "numbered", shapes)
        numbered = read_layers(folder / "numbered" / "m.ncnn.param", folder / "numbered" / "m.ncnn.bin")
    found = paired(layers, numbered, list(scales))
    for key, layer in found.items():
        quantize(layer, *scales[key])
    requantize(layers)
    target = Path(request.options["files"] or request.results) / request.model.stem
    files = [target.with_suffix(ending) for ending in (".param", ".bin")]
    write_layers(layers, *files)
    compute(request, model, files, script)
    lost = [key for key in scales if key not in found]
    return {
        "outputs": [value.name for value in model.graph.output],
        "integer": [f"{layer.type} {key}" for key, layer in found.items()],
        "floating": [f"{each.type} {each.name}" for each in layers if each.arrays and not each.quantized],
        "remarks": [f"{key}: no layer of ncnn that has scales, it stays float" for key in lost],
        "files": [str(file) for file in files],
    }


def read_table(path: Path) -> dict[str, tuple[Any, Any]]:
    """Layer → inverse scales of its weights and of its input, in the float32 that ncnn2int8 reads."""
    lines = {}
    for line in path.read_text().splitlines():
        key, *texts = line.split()
        lines[key] = np.array([float(text) for text in texts], np.float32)
    return {key: (lines[f"{key}{SUFFIX}"], scale) for key, scale in lines.items() if not key.endswith(SUFFIX)}


def shapes_of(model: Any, feeds: Mapping[str, Any]) -> str:
    """pnnx's ``inputshape``: of the first sample, or of the model with 1 for what is free."""
    import onnx

    texts = []
    for value in inputs_of(model):
        tensor = value.type.tensor_type
        kind = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name
        if kind not in TYPES:
            raise RefusedError(f"pnnx has no type for the {kind} input {value.name!r}")
        shape = feeds[value.name].shape if feeds else [d.dim_value or 1 for d in tensor.shape.dim]
        texts.append(f"[{','.join(map(str, shape))}]{TYPES[kind]}")
    return ",".join(texts)


def inputs_of(model: Any) -> list[Any]:
    """Inputs that no initializer gives."""
    constants = {tensor.name for tensor in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in constants]


def convert(model: Any, folder: Path, shapes: str) -> str:
    """Let pnnx write ``m.ncnn.param`` and ``m.ncnn.bin``; the text of its script that runs them."""
    import onnx

    folder.mkdir()
    onnx.save(model, folder / "m.onnx")
    found = importlib.util.find_spec("pnnx")
    assert found is not None and found.origin is not None
    program = Path(found.origin).parent / ("pnnx.exe" if sys.platform == "win32" else "pnnx")
    command = [str(program), "m.onnx", "fp16=0", f"inputshape={shapes}"]
    done = subprocess.run(command, cwd=folder, capture_output=True, encoding="utf-8", errors="replace", check=False)
    script = folder / "m_ncnn.py"
    if done.returncode or not script.is_file():
        raise RefusedError(f"pnnx ends with code {done.returncode}: {' '.join(done.stderr.splitlines()[-3:])}")
    return script.read_text()


def number_weights(model: Any, names: list[str]) -> None:
    """Fill the weights of each of these nodes with its number."""
    from onnx import numpy_helper

    shapes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.name in names and node.input[1] in shapes:
            number = np.float32(1 + names.index(node.name) * STEP)
            name = f"{node.name}/number"
            model.graph.initializer.append(numpy_helper.from_array(np.full(shapes[node.input[1]], number), name))
            node.input[1] = name


def paired(layers: list[Layer], numbered: list[Layer], names: list[str]) -> dict[str, Layer]:
    """The layers that the table names, of those that can be quantized."""
    if [layer.form for layer in layers] != [layer.form for layer in numbered]:
        raise RefusedError(
            "pnnx converts the model otherwise where its weights are others: layers cannot be told apart"
        )
    found = {}
    for layer, other in zip(layers, numbered, strict=True):
        if layer.type not in KINDS or not other.arrays:
            continue
        weights = other.arrays[0]
        index = (float(weights[0]) - 1) / STEP
        if (weights == weights[0]).all() and index in range(len(names)):
            found[names[int(index)]] = layer
    return found


def compute(request: Request, model: Any, files: list[Path], script: str) -> None:
    """Run the samples in ncnn; pnnx's script says which axis of inputs and outputs counts samples, 233 for none."""
    import ncnn

    axes = dict(re.findall(r"(\w+)\.numpy\((?:\), )?batch_index=(\d+)\)", script))
    inputs = [value.name for value in inputs_of(model)]
    with ncnn.Net() as net:
        net.opt.num_threads = 1
        net.opt.use_packing_layout = request.options["packing"]
        if net.load_param(str(files[0])) or net.load_model(str(files[1])):
            raise RefusedError("ncnn does not load the int8 model")
        for index, feeds in enumerate(request.feeds()):
            with net.create_extractor() as extractor:
                for k, name in enumerate(inputs):
                    sample = ncnn.Mat(narrowed(name, feeds[name]), batch_index=int(axes[f"in{k}"])).clone()
                    if extractor.input(f"in{k}", sample):
                        raise RefusedError(f"ncnn does not take the input {name!r}")
                outputs = []
                for k, value in enumerate(model.graph.output):
                    failed, made = extractor.extract(f"out{k}")
                    if failed:
                        raise RefusedError(f"ncnn cannot compute the output {value.name!r}")
                    outputs.append(np.array(made.numpy(batch_index=int(axes[f"out{k}"]))))
            request.write(index, outputs)


def narrowed(name: str, array: Any) -> Any:
    """An input as ncnn's layers read it: indices in 32 bits, whatever the model says."""
    if array.dtype != np.int64:
        return np.ascontiguousarray(array)
    least, most = np.iinfo(np.int32).min, np.iinfo(np.int32).max
    if array.size and not least <= array.min() <= array.max() <= most:
        raise RefusedError(f"ncnn reads integers of 32 bits, and the input {name!r} has others")
    return np.ascontiguousarray(array, np.int32)


if __name__ == "__main__":
    sys.exit(serve(version, run))
