"""onnxsim, guarded: in a process of its own, its result compared with the original before it is taken over."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx_ir as ir

from onnxq.errors import ModelError, OnnxqError, OptionError
from onnxq.graph.files.load import load
from onnxq.graph.files.save import save
from onnxq.graph.note import Note
from onnxq.graph.values import AnyArray
from onnxq.ort.inputs import InputInfo
from onnxq.ort.session import Session

__all__ = ["simplify"]

TIMEOUT_SECONDS = 600.0
TOLERANCE = 1e-4
"""Largest difference of an output, relative to its largest number."""

_MAX_GROWTH = 2.0
_SCRIPT = """
import sys, onnx, onnxsim
result, _ = onnxsim.simplify(sys.argv[1], skip_fuse_bn=True, tensor_size_threshold="1MB")
onnx.save(result, sys.argv[2], save_as_external_data=sys.argv[3] == "1", location="simplified.data")
"""


def simplify(model: ir.Model, *, timeout: float = TIMEOUT_SECONDS) -> list[Note]:
    """Simplifies a model with onnxsim, or leaves it as it is with a note that says why.

    onnxsim runs in a child process, which may crash or hang without harm; constants larger than 1 MB are not made and
    batch normalizations not folded. The result is taken when it has the same inputs and outputs, has not grown, and
    computes the same on random feeds. What onnxsim writes into the metadata is dropped.

    Args:
        model: changed in place when all is well.
        timeout: seconds given to the child process.

    Raises:
        OptionError: onnxsim is not installed.
    """
    if importlib.util.find_spec("onnxsim") is None:
        raise OptionError("onnxsim is not installed", hint='Install it: pip install "onnxq[simplify]"')
    with tempfile.TemporaryDirectory(prefix="onnxq-") as folder:
        before, after = Path(folder) / "before.onnx", Path(folder) / "after.onnx"
        written = save(model, before)
        external = len(written) > 1
        command = [sys.executable, "-c", _SCRIPT, str(before), str(after), "1" if external else "0"]
        try:
            done = subprocess.run(
                command, capture_output=True, encoding="utf-8", errors="replace", timeout=timeout, check=False
            )
        except subprocess.TimeoutExpired:
            return [_left(f"it did not finish within {timeout:g} s")]
        if done.returncode != 0 or not after.is_file():
            lines = done.stderr.strip().splitlines()
            return [_left(lines[-1] if lines else f"it ended with code {done.returncode}")]
        grown = sum(path.stat().st_size for path in Path(folder).glob("*") if path not in written)
        if grown > _MAX_GROWTH * sum(path.stat().st_size for path in written) + (1 << 20):
            return [_left(f"it would make the file {grown} bytes large")]
        try:
            reason = _compare(before, after)
            simplified = load(after)
        except OnnxqError as error:
            return [_left(str(error))]
        if reason is not None:
            return [_left(reason)]
        nodes = len(model.graph)
        _materialize(simplified)
        _adopt(model, simplified)
    return [Note("simplify", "", f"onnxsim: {nodes} nodes became {len(model.graph)}")]


def _left(reason: str) -> Note:
    return Note("simplify", "", f"onnxsim's result is not used: {reason}")


def _materialize(model: ir.Model) -> None:
    """Reads external data of a file that is about to go."""
    for value in model.graph.initializers.values():
        if isinstance(value.const_value, ir.ExternalTensor):
            tensor = value.const_value
            value.const_value = ir.Tensor(np.array(tensor.numpy()), dtype=tensor.dtype, name=tensor.name)


def _adopt(model: ir.Model, simplified: ir.Model) -> None:
    old, new = model.graph, simplified.graph
    for before, after in zip((*old.inputs, *old.outputs), (*new.inputs, *new.outputs), strict=True):
        after.type, after.shape, after.doc_string = before.type, before.shape, before.doc_string
    new.name, new.doc_string = old.name, old.doc_string
    new.metadata_props.clear()
    new.metadata_props.update(old.metadata_props)
    for domain, version in old.opset_imports.items():
        new.opset_imports.setdefault(domain, version)
    model.graph = new
    model.ir_version = max(model.ir_version, simplified.ir_version)
    model.functions.clear()
    model.functions.update(simplified.functions)


def _signature(infos: list[InputInfo]) -> list[tuple[str, str, int | None]]:
    return [(info.name, str(info.dtype), None if info.shape is None else len(info.shape)) for info in infos]


def _compare(before: Path, after: Path) -> str | None:
    """Why the second model is not the first one simplified; None when it is."""
    first, second = Session(before, optimize=False), Session(after, optimize=False)
    if _signature(first.inputs) != _signature(second.inputs):
        return "its inputs differ"
    if _signature(first.outputs) != _signature(second.outputs):
        return "its outputs differ"
    for seed in range(2):
        feeds = _feeds(first.inputs, seed)
        expected, got = first.run(feeds), second.run(feeds)
        for name, array in expected.items():
            difference = _difference(array, got[name])
            if difference is not None:
                return f"output '{name}' differs on random feeds ({difference})"
    return None


def _difference(expected: AnyArray, got: AnyArray) -> str | None:
    if not isinstance(expected, np.ndarray) or not isinstance(got, np.ndarray):
        return "not a tensor, so it cannot be compared"
    if expected.shape != got.shape or expected.dtype != got.dtype:
        return f"{expected.dtype}{expected.shape} became {got.dtype}{got.shape}"
    if expected.dtype.kind not in "fc":
        return None if np.array_equal(expected, got) else "numbers"
    if not np.array_equal(np.isfinite(expected), np.isfinite(got)):
        return "where it is not finite"
    finite = np.isfinite(expected)
    if not finite.any():
        return None
    scale = max(float(np.abs(expected[finite]).max()), 1e-30)
    worst = float(np.abs(expected[finite].astype(np.float64) - got[finite].astype(np.float64)).max()) / scale
    return None if worst <= TOLERANCE else f"by {worst:.2g} of its scale"


def _feeds(inputs: list[InputInfo], seed: int) -> Mapping[str, AnyArray]:
    random = np.random.default_rng(seed)
    feeds: dict[str, AnyArray] = {}
    for info in inputs:
        shape = tuple(dim if isinstance(dim, int) and dim >= 0 else 1 for dim in info.shape or ())
        if info.dtype.kind == "f" or info.dtype.kind == "V":
            feeds[info.name] = random.random(shape).astype(info.dtype)
        elif info.dtype.kind == "b":
            feeds[info.name] = random.random(shape) < 0.5
        elif info.dtype.kind in "iu":
            feeds[info.name] = random.integers(0, 2, shape).astype(info.dtype)
        else:
            raise ModelError(f"input '{info.name}' is not a tensor of numbers, so nothing can be compared")
    return feeds
