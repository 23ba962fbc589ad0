"""Compile a model for Qualcomm's HTP with onnxruntime-qnn, run it there, and write context binaries or DLCs."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from common import Request, serve

PROVIDER = "QNNExecutionProvider"
FLOATS = (0x0216, 0x0232, 0x0264)
"""Codes of float types in ``QnnTypes.h`` (``QNN_DATATYPE_FLOAT_16`` and so on)."""


def version() -> str:
    import onnxruntime
    import onnxruntime_qnn

    return f"{onnxruntime_qnn.__version__} (onnxruntime {onnxruntime.__version__})"


def run(request: Request) -> dict[str, Any]:
    import onnxruntime
    import onnxruntime_qnn

    asked = request.options
    onnxruntime.register_execution_provider_library(PROVIDER, onnxruntime_qnn.get_library_path())
    devices = [d for d in onnxruntime.get_ep_devices() if d.ep_name == PROVIDER]
    if not devices:
        raise RuntimeError("onnxruntime-qnn offers no device here")
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
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        if not asked["fallback"]:
            options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        if asked["context"]:
            options.add_session_config_entry("ep.context_enable", "1")
            options.add_session_config_entry("ep.context_file_path", str(asked["context"]))
            options.add_session_config_entry("ep.context_embed_mode", "0")
        options.add_provider_for_devices(devices[:1], provider)
        for name, size in sizes(request).items():
            options.add_free_dimension_override_by_name(name, size)
        session = onnxruntime.InferenceSession(str(request.model), options)
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


def sizes(request: Request) -> dict[str, int]:
    """Free dimensions of the model's inputs, as the first sample has them: the HTP compiles for fixed sizes."""
    import onnx

    found: dict[str, int] = {}
    sample: dict[str, Any] = next(request.feeds(), {})
    for value in onnx.load(request.model, load_external_data=False).graph.input:
        for dim, size in zip(value.type.tensor_type.shape.dim, np.shape(sample.get(value.name, 0)), strict=False):
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
