"""How long the kernels of onnxruntime's CPU provider take, by its own profile."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnxruntime as ort

__all__ = ["Kernel", "kernel_times"]

_ENDING = "_kernel_time"


@dataclass
class Kernel:
    """A node as onnxruntime runs it.

    Attributes:
        op: its operator.
        times: microseconds of each run.
    """

    op: str
    times: list[float] = field(default_factory=list)


def kernel_times(model: bytes | Path, feeds: Mapping[str, Any], runs: int) -> dict[str, Kernel]:
    """The kernels of a model by the names of their nodes, in the order of the first run, on one thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.enable_profiling, options.log_severity_level = 1, True, 3
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = str(Path(folder) / "p")
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        for _ in range(runs):
            session.run(None, feeds)
        events = json.loads(Path(session.end_profiling()).read_text())
    found: dict[str, Kernel] = {}
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith(_ENDING):
            kernel = found.setdefault(event["name"].removesuffix(_ENDING), Kernel(event["args"]["op_name"]))
            kernel.times.append(event["dur"])
    return found
