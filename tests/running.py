"""onnxruntime as tests run it: opened by itself, not by onnxq."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from onnxq.ort.session import PRECISE

__all__ = ["Feeds", "infer", "open_session", "optimized"]

Feeds = Mapping[str, NDArray[Any]]
Given = onnx.ModelProto | bytes | str | os.PathLike[str]


def open_session(
    model: Given,
    *,
    optimize: bool = True,
    library: Path | None = None,
    written: Path | None = None,
    precise: bool = False,
) -> ort.InferenceSession:
    """A session of one thread on the CPU that says nothing.

    Args:
        model: or a file.
        optimize: with all graph optimizations, else with none.
        library: of custom operators.
        written: where the optimized graph is written to.
        precise: sums of 8-bit products are exact on every processor.
    """
    options, level = ort.SessionOptions(), ort.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimize else level.ORT_DISABLE_ALL
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    if library is not None:
        options.register_custom_ops_library(str(library))
    if written is not None:
        options.optimized_model_filepath = str(written)
    if precise:
        options.add_session_config_entry(PRECISE, "1")
    source = model.SerializeToString() if isinstance(model, onnx.ModelProto) else model
    return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def infer(
    model: Given, feeds: Sequence[Feeds], *, optimize: bool, library: Path | None = None
) -> dict[str, list[NDArray[Any]]]:
    """Outputs by onnxruntime, one array a sample."""
    session = open_session(model, optimize=optimize, library=library)
    names = [output.name for output in session.get_outputs()]
    inputs = {value.name for value in (*session.get_inputs(), *session.get_overridable_initializers())}
    runs = [session.run(None, {n: a for n, a in sample.items() if n in inputs}) for sample in feeds]
    return {name: [np.asarray(run[i]) for run in runs] for i, name in enumerate(names)}


def optimized(model: Given, folder: Path) -> onnx.ModelProto:
    """The graph as onnxruntime runs it, without tensors in other files.

    Args:
        model: or a file.
        folder: where it is written to.
    """
    written = folder / "optimized.onnx"
    open_session(model, written=written)
    return onnx.load(written, load_external_data=False)
