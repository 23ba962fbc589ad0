"""What a real runtime is to onnxq: a script that loads an artifact in a process of its own, and what it found."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

__all__ = ["Examination", "Runtime"]

WORKERS = Path(__file__).parent / "workers"


@dataclass(frozen=True)
class Runtime:
    """A runtime that a script of this package can drive.

    Attributes:
        name: its entry point in the group ``onnxq.runtimes``.
        title: one line for tables.
        requirements: what ``pip install`` needs, besides numpy.
        runs: it computes outputs; else it only compiles the artifact.
        options: what the script takes, name → default.
        in_parts: options for a model taken apart at its quantizers, see :mod:`onnxq.measuring.layerwise`.
        reads_codes: it takes integers from graph inputs as they are; else the parts quantize floats.
        timed: it computes where its users' models run, so that its times here tell something.
        one_shape: it compiles for the sizes of the first sample, and takes no others.
        ending: of the file beside the ONNX model that it runs in its place; empty where it runs that itself.
        steps: by how many steps of its quantizer its integer of a layer is known to differ from onnxruntime's.
    """

    name: str
    title: str
    requirements: tuple[str, ...]
    runs: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)
    in_parts: Mapping[str, Any] = field(default_factory=dict)
    reads_codes: bool = True
    timed: bool = False
    one_shape: bool = False
    ending: str = ""
    steps: int = 1

    @property
    def install(self) -> str:
        """The command that installs it, as a shell takes it."""
        return f"pip install {shlex.join(self.requirements)}"

    @property
    def worker(self) -> Path:
        """The script; any interpreter that has the requirements runs it, without onnxq."""
        return WORKERS / f"run_{self.name}.py"


@dataclass(frozen=True)
class Examination:
    """What a runtime made of an artifact.

    Attributes:
        runtime: its name.
        version: its version.
        outputs: a mapping for each sample, output name → array; empty where the runtime does not compute.
        integer: operators that the runtime computes in integers, as it names them.
        floating: operators that it computes in float.
        remarks: anything else worth knowing.
        files: files that the runtime wrote for the device.
        times: best CPU seconds of a run on one thread, of the model beside it and of the artifact; None where it was
            not timed.
        timed: what else there is to say of these times.
    """

    runtime: str
    version: str
    outputs: tuple[Mapping[str, NDArray[Any]], ...] = ()
    integer: tuple[str, ...] = ()
    floating: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    times: tuple[float, float] | None = None
    timed: str = ""
