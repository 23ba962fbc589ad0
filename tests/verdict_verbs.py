"""What the other verbs make of a result: `show`, `verify`, `deploy` and `compare`, and what the command line prints.

Each gives a sound answer, or an error of `onnxq.errors` that says what is wrong. Anything else that is raised goes
through to the caller, for whom it is a fault.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onnxq import Quantized, compare, deploy, show, verify
from onnxq.cli import main
from onnxq.errors import OnnxqError, VerificationError
from onnxq.ort.session import Session

__all__ = ["VERBS", "assert_planned", "assert_verbs"]

VERBS = ("check", "plan", "quantize", "show", "verify", "compare", "deploy")
"""All that is run, in order; the last three where something is quantized."""
_TARGETS = ("onnxruntime", "tensorrt")
"""Where results are deployed to."""
_LOSS = 15.0
"""dB that deploying for another target may cost: its grids of bias, and what it fuses, differ."""

Feeds = Sequence[Mapping[str, Any]]


def assert_planned(path: Path, backend: str, placement: str) -> None:
    """`onnxq plan` prints a plan, or one line that says why there is none."""
    code, text, said = command("plan", str(path), "--backend", backend, "--placement", placement, "-v")
    assert code in (0, 1) and bool(text.strip()) == (code == 0), f"onnxq plan: exit code {code}: {said}"


def assert_verbs(reference: onnx.ModelProto, quantized: Quantized, feeds: Feeds) -> None:
    """Hold what the verbs after `quantize` say of its result to what is known of it.

    Args:
        reference: the float model.
        quantized: what was made of it, and written.
        feeds: samples of tensors.
    """
    _assert_shown(quantized.files[0])
    tensors = all(info.type.HasField("tensor_type") for info in (*reference.graph.input, *reference.graph.output))
    if not (quantized.plan.quantized and tensors):
        return
    name = quantized.backend.name
    agreement = verify(quantized.files[0], feeds, backend=name, simulation=True)
    assert agreement.tensors, "verify finds no quantizers in the artifact"
    _dumped(agreement.to_dict())
    _dumped(compare(reference, quantized, feeds).to_dict())
    for target in _TARGETS:
        _assert_deployed(reference, quantized, feeds, target)


def _assert_shown(path: Path) -> None:
    code, text, said = command("show", str(path), "--all")
    assert code == 0 and text.strip(), f"onnxq show: exit code {code}: {said}"
    model, view = onnx.load(path, load_external_data=False), show(path).to_dict()
    _dumped(view)
    known = {tensor.name for tensor in model.graph.initializer}
    assert list(view["outputs"]) == [info.name for info in model.graph.output], "show lists other outputs"
    assert set(view["inputs"]) == {i.name for i in model.graph.input} - known, "show lists other inputs"


def _assert_deployed(reference: onnx.ModelProto, quantized: Quantized, feeds: Feeds, target: str) -> None:
    """The result on another target, from the rendering: a table beside a float model has no quantizers to keep."""
    source = quantized.rendered()
    try:
        made = deploy(source, backend=target)
    except VerificationError:
        raise
    except OnnxqError as error:
        assert error.what.strip() and (error.where or error.hint), f"deploy: an error without a place: {error}"
        return
    result = ir.to_proto(made.rendered())
    onnx.checker.check_model(result, full_check=True)
    for kind in ("input", "output"):
        want, have = ([(i.name, i.type.SerializeToString(deterministic=True)) for i in getattr(m.graph, kind)]
                      for m in (ir.to_proto(source), result))  # fmt: skip
        assert want == have, f"deploy to {target}: other {kind}s"
    names = [info.name for info in reference.graph.output]
    models = (ir.to_proto(quantized.model), ir.to_proto(source), result)
    sessions = [Session(model.SerializeToString(), optimize=False, threads=1) for model in models]
    for sample in feeds:
        first, second, third = (session.run(sample, names) for session in sessions)
        for name in names:
            if first[name].dtype.kind != "f":
                continue
            before, after = _sqnr(first[name], second[name]), _sqnr(first[name], third[name])
            kept = after >= min(before, 40.0) - _LOSS
            assert kept, f"deploy to {target}: output {name!r} has {after:.1f} dB, and the model given {before:.1f}"


def _sqnr(want: Any, have: Any) -> float:
    """dB of one array against another, where the first is finite."""
    assert want.shape == have.shape, f"shape {have.shape}, not {want.shape}"
    finite = np.isfinite(want)
    exact = want[finite].astype(np.float64)
    noise = float(np.square(exact - have[finite]).sum())
    return float("inf") if noise == 0 else 10 * float(np.log10(max(float(np.square(exact).sum()), 1e-300) / noise))


def _dumped(document: Any) -> None:
    json.dumps(document, allow_nan=False)


def command(*arguments: str | os.PathLike[str]) -> tuple[int, str, str]:
    """The exit code of the command line in this process, and what it printed to stdout and stderr.

    Raises:
        RuntimeError: it called what happened an internal error.
    """
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main([str(argument) for argument in arguments])
    if "internal error" in err.getvalue():
        raise RuntimeError(f"onnxq {arguments[0]}: {err.getvalue().splitlines()[0]}")
    return code, out.getvalue(), err.getvalue().strip()[:300]
