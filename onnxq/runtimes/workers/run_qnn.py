"""Compile a model for Qualcomm's HTP with onnxruntime-qnn, run it there, and write context binaries or DLCs."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from common import RefusedError, Request, serve

PROVIDER = "QNNExecutionProvider"
FLOATS = (0x0216, 0x0232, 0x0264)
"""Codes of float types in ``QnnTypes.h`` (``QNN_DATATYPE_FLOAT_16`` and so on)."""
MOST = 4
"""Nodes that a message names."""


def version() -> str:
    import onnxruntime
    import onnxruntime_qnn

    return f"{onnxruntime_qnn.__version__} (onnxruntime {onnxruntime.__version__})"


def run(request: Request) -> dict[str, Any]:
    import onnxruntime
    import onnxruntime_qnn

    asked = request.options
    libraries = Path(onnxruntime_qnn.get_library_path()).parent
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        provider = {
            "backend_path": str(libraries / "libQnnHtp.so"),
            "dump_json_qnn_graph": "1",
            "json_qnn_graph_dir": name,
        }
        if asked["arch"]:
            provider["htp_arch"] = str(asked["arch"])
        if asked["soc"]:
            provider["soc_model"] = str(asked["soc"])
        if asked["dlc"]:
            provider["dump_qnn_ir_dlc"] = "1"
            provider["dump_qnn_ir_dlc_dir"] = str(asked["dlc"])
            provider["qnn_ir_backend_path"] = str(libraries / "libQnnIr.so")

        def load(feeds: dict[str, Any], severity: int = 3) -> Any:
            onnxruntime.set_default_logger_severity(severity)  # which the provider takes over when it is registered
            onnxruntime.register_execution_provider_library(PROVIDER, onnxruntime_qnn.get_library_path())
            devices = [d for d in onnxruntime.get_ep_devices() if d.ep_name == PROVIDER]
            if not devices:
                raise RuntimeError("onnxruntime-qnn offers no device here")
            options = onnxruntime.SessionOptions()
            options.log_severity_level = severity
            if not asked["fallback"]:
                options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
            if asked["context"]:
                options.add_session_config_entry("ep.context_enable", "1")
                options.add_session_config_entry("ep.context_file_path", str(asked["context"]))
                options.add_session_config_entry("ep.context_embed_mode", "0")
            options.add_provider_for_devices(devices[:1], provider)
            for name, size in sizes(request.model, feeds).items():
                options.add_free_dimension_override_by_name(name, size)
            return onnxruntime.InferenceSession(str(request.model), options)

        first: dict[str, Any] = next(request.feeds(), {})
        try:
            session = load(first)
        except Exception as error:  # onnxruntime's errors have no root of their own
            onnxruntime.unregister_execution_provider_library(PROVIDER)
            raise RefusedError(reason(str(error), logged(folder / "log", lambda: load(first, 0)))) from error
        integer, floating = kinds(folder)
    if not asked["dlc"]:
        for index, feeds in enumerate(request.feeds()):
            request.write(index, session.run(None, feeds))
    return {
        "outputs": [] if asked["dlc"] else [o.name for o in session.get_outputs()],
        "integer": integer,
        "floating": floating,
        "files": list(written(asked)),
    }


def logged(path: Path, load: Callable[[], Any]) -> str:
    """What QNN and the provider write while a session is created: libraries write to the process's stderr."""
    kept = os.dup(2)
    try:
        with path.open("wb") as file:
            os.dup2(file.fileno(), 2)
            with contextlib.suppress(Exception):
                load()
    finally:
        os.dup2(kept, 2)
        os.close(kept)
    return path.read_text(errors="replace")


def reason(error: str, log: str) -> str:
    """Why no session was created: the nodes that QNN names, then what it could not make of them, then the error.

    Args:
        error: that of onnxruntime, which names none.
        log: of QNN and its provider, with all they have to say.
    """
    left = dict(re.findall(r"\{ name: (.*?), type: (\w+) \}", log))
    if left and "fallback" in error:
        return f"the HTP does not take {some(f'{kind} {name!r}' for name, kind in left.items())}"
    kernels = re.findall(r"could not create op: q::(\w+)", log)
    kernels += re.findall(r"No constructible op for \S+ 'q::(\w+)'", log)
    nodes = [name.split("_token_")[0] for name in re.findall(r'<E> "(.*?)" generated: ', log)]
    last = error.strip().splitlines()[-1]
    if not kernels:
        return f"QNN cannot compile {some(map(repr, nodes))}: {last}" if nodes else last
    words = {word.lower() for kernel in kernels for word in kernel.split("_")} - {"qnn", "fail"}
    nodes.sort(key=lambda name: not any(word in name.lower() for word in words))
    near = f", at or near {some(map(repr, nodes))}" if nodes else ""
    return f"QNN cannot make its {' or '.join(dict.fromkeys(kernels))}{near}: {last}"


def some(names: Iterable[str]) -> str:
    """The first of some names."""
    found = list(dict.fromkeys(names))
    return ", ".join(found[:MOST]) + (f" and {len(found) - MOST} more" if len(found) > MOST else "")


def sizes(model: Path, feeds: dict[str, Any]) -> dict[str, int]:
    """Free dimensions of the model's inputs, as a sample has them: the HTP compiles for fixed sizes."""
    import onnx

    found: dict[str, int] = {}
    for value in onnx.load(model, load_external_data=False).graph.input:
        for dim, size in zip(value.type.tensor_type.shape.dim, np.shape(feeds.get(value.name, 0)), strict=False):
            if dim.dim_param:
                found.setdefault(dim.dim_param, size)
    return found


def kinds(folder: Path) -> tuple[list[str], list[str]]:
    """Operators of the HTP's graphs whose results are all integers, and those with a float result."""
    integer: list[str] = []
    floating: list[str] = []
    for path in sorted(folder.rglob("*.json")):
        graph = json.loads(path.read_text(errors="replace")).get("graph")
        if not graph:
            continue
        floats = {name for name, tensor in graph["tensors"].items() if tensor["data_type"] in FLOATS}
        for name, node in graph["nodes"].items():
            if node["type"] not in ("Quantize", "Dequantize", "Cast"):
                kind = floating if floats & set(node["output_names"]) else integer
                kind.append(f"{node['type']} {name.split('_token_')[0]}")
    return integer, floating


def written(asked: dict[str, Any]) -> Iterator[str]:
    """Files that the provider was asked to write, the context model first."""
    if asked["context"]:
        model = Path(asked["context"])
        yield str(model)
        yield from sorted(str(p) for p in model.parent.glob(f"{model.stem}*.bin"))
    if asked["dlc"]:
        yield from sorted(str(p) for p in Path(asked["dlc"]).glob("*.dlc"))


if __name__ == "__main__":
    sys.exit(serve(version, run))
