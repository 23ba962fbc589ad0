"""The verdict on what becomes of a model that nobody here wrote.

Every model goes through `check`, `plan` and `quantize` and must come out in one of three ways: quantized (a valid
file that runs, with the same interface), untouched (nothing quantized, equal numbers) or refused (an error of
`onnxq.errors` that says what and where, and that `check` foretells). Everything else is a fault.
"""

from __future__ import annotations

import os
import tempfile
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto

from onnxq import Options, Quantized, check, plan, quantize
from onnxq.errors import OnnxqError, VerificationError
from onnxq.options import Placement
from onnxq.ort.session import Session
from tests.contract import assert_contract
from tests.foreign import Case, Feed
from tests.verdict_verbs import assert_planned, assert_verbs

__all__ = ["Outcome", "Verdict", "judge", "line", "spot"]

Outcome = Literal["quantized", "untouched", "refused", "FAULT"]

_RAW = (TensorProto.BFLOAT16, *range(TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E5M2FNUZ + 1))
_RANDOM = frozenset({"Bernoulli", "Multinomial", "RandomNormal", "RandomUniform"}) | {
    "RandomNormalLike",
    "RandomUniformLike",
}
_BY_DESIGN = (
    "it is a sequence",
    "the data has no array for the model's input",
    "Scan of opset 8",
    "reads models up to",
)
"""What onnxruntime runs and onnxq does not take: no tensors go in, too old to be raised, too new for a target."""
_LEAST = 25.0
"""dB between a result run with and without graph optimizations."""


@dataclass(frozen=True)
class Verdict:
    """What became of a model.

    Attributes:
        outcome: see the module.
        text: the first line of the error, what is wrong, or how many nodes are quantized.
    """

    outcome: Outcome
    text: str


def judge(case: Case, backend: str = "onnxruntime", placement: Placement = "all") -> Verdict:
    """Check, plan and quantize a model, and look at what comes out; Python's warnings count as errors."""
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("error")
        try:
            return _judged(case, backend, Options(placement=placement), Path(folder))
        except AssertionError as error:
            return Verdict("FAULT", f"broken contract: {line(error)} ({spot(error)})")
        except Exception as error:
            return Verdict("FAULT", f"{type(error).__name__}: {line(error)} ({spot(error)})")


def _judged(case: Case, backend: str, options: Options, folder: Path) -> Verdict:
    source = case.source if isinstance(case.source, Path) else onnx.load_from_string(case.source)
    before, reference = _content(source), onnx.load(source) if isinstance(source, Path) else source
    feeds = list(case.feeds)
    findings = check(source, backend=backend, data=feeds, options=options)
    assert all(f.where.strip() and f.what.strip() for f in findings), "a finding without where or what"
    foretold = [f for f in findings if f.level == "error"]
    refusal: OnnxqError | None = None
    try:
        planned = set(plan(source, backend=backend, options=options).quantized)
        quantized = quantize(source, feeds, backend=backend, options=options, output=folder)
    except VerificationError as error:
        return Verdict("FAULT", f"the final check fails: {line(error)}")
    except OnnxqError as error:
        refusal = error
    assert _content(source) == before, "the model given was changed"
    if refusal is not None:
        assert refusal.what.strip() and refusal.where, f"an error without what or where: {line(refusal)}"
        assert foretold, f"refused, and check did not say so: {line(refusal)}"
        ours = (
            any(words in refusal.what for words in _BY_DESIGN)
            or _run(reference, feeds) is None
            or not _valid(reference)
        )
        assert ours, f"refused, though onnxruntime runs the float model: {line(refusal)}"
        return Verdict("refused", f"{type(refusal).__name__}: {line(refusal)}")
    assert not foretold, f"check says what is not so: {foretold[0].where}: {foretold[0].what}"
    assert planned >= set(quantized.plan.quantized) or backend != "onnxruntime", "more is quantized than was planned"
    _assert_written(reference, quantized)
    _assert_works(reference, quantized, feeds)
    if isinstance(source, Path):
        path = source
    else:
        path = folder / "source.onnx"
        path.write_bytes(before)
    assert_planned(path, backend, options.placement)
    assert_verbs(reference, quantized, feeds)
    count = len(quantized.plan.quantized) + len(quantized.plan.stored)
    return Verdict("quantized", f"{count} nodes") if count else Verdict("untouched", _reasons(quantized))


def _content(source: Path | onnx.ModelProto) -> bytes:
    return source.read_bytes() if isinstance(source, Path) else source.SerializeToString(deterministic=True)


def _reasons(quantized: Quantized) -> str:
    return "; ".join(dict.fromkeys(f"{kept.op}: {kept.reason}" for kept in quantized.plan.kept_float)) or "no floats"


def _assert_written(reference: onnx.ModelProto, quantized: Quantized) -> None:
    """The files are there, and the ONNX model among them is valid with the same interface."""
    assert quantized.files, "nothing was written"
    touched = quantized.plan.quantized or quantized.plan.stored  # else a table may well have no lines
    assert not touched or all(path.stat().st_size for path in quantized.files), "an empty file was written"
    for path in quantized.files:
        if path.suffix == ".onnx":
            onnx.checker.check_model(os.fspath(path), full_check=not _unranked(reference))
            written = onnx.load(path, load_external_data=False)
            assert _interface(written) == _interface(reference), "the interface of the file differs"


def _unranked(model: onnx.ModelProto) -> bool:
    """Whether an output has no rank, which runtimes accept and the checker in full does not."""
    kinds = [info.type for info in model.graph.output]
    return any(kind.HasField("tensor_type") and not kind.tensor_type.HasField("shape") for kind in kinds)


def _interface(model: onnx.ModelProto) -> list[tuple[str, bytes]]:
    constants = {tensor.name for tensor in model.graph.initializer}
    values = [info for info in model.graph.input if info.name not in constants] + list(model.graph.output)
    return [(info.name, info.type.SerializeToString(deterministic=True)) for info in values]


def _assert_works(reference: onnx.ModelProto, quantized: Quantized, feeds: Sequence[Feed]) -> None:
    """It runs, and computes what the float model does: closely where nothing is quantized, finitely where it is."""
    result = ir.to_proto(quantized.rendered())
    outputs = [info.type for info in reference.graph.output]
    tensors = all(kind.HasField("tensor_type") for kind in outputs)
    touched = quantized.plan.quantized or quantized.plan.stored
    at_home = quantized.backend.runtime == "onnxruntime"  # its optimizations are tried only where it is the target
    expected = _run(reference, feeds)
    random = any(node.op_type in _RANDOM or _drops(node) for node in result.graph.node)
    raw = any(kind.tensor_type.elem_type in _RAW for kind in [*outputs, *(i.type for i in reference.graph.input)])
    if expected is not None and tensors and not random and touched and not raw and not _unranked(reference):
        assert_contract(reference, result, quantized, feeds, agree=_LEAST, optimize=at_home)
        return
    got = {optimize: _outputs(result, feeds, optimize=optimize) for optimize in (at_home, False)}
    if expected is None or random or touched:
        return
    for name, arrays in expected.items():
        for want, *have in zip(arrays, got[at_home][name], got[False][name], strict=True):
            assert all(_close(want, array) for array in have), f"output {name!r} of an untouched model differs"


def _drops(node: onnx.NodeProto) -> bool:
    return node.op_type == "Dropout" and len(node.input) > 2


def _valid(model: onnx.ModelProto) -> bool:
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception:  # the checker's and shape inference's own
        return False
    return True


def _run(model: onnx.ModelProto, feeds: Sequence[Feed]) -> dict[str, list[Any]] | None:
    """The outputs of the float model; None where onnxruntime cannot run it as it is."""
    try:
        return _outputs(model, feeds, optimize=False)
    except Exception:  # its exceptions share no base
        return None


def _outputs(model: onnx.ModelProto, feeds: Sequence[Feed], *, optimize: bool) -> dict[str, list[Any]]:
    """Outputs by onnxruntime, one a sample; lists for sequences."""
    session = Session(model.SerializeToString(), optimize=optimize, threads=1)
    names = [info.name for info in model.graph.output]
    runs = [session.run(sample, names) for sample in feeds]
    return {name: [run[name] for run in runs] for name in names}


def _close(want: Any, have: Any) -> bool:
    if isinstance(want, list):
        return len(want) == len(have) and all(_close(a, b) for a, b in zip(want, have, strict=True))
    if not isinstance(want, np.ndarray):
        return bool(want == have)
    raw = want.dtype.kind == "V"
    if raw and want.dtype == have.dtype:
        want, have = want.astype(np.float32), have.astype(np.float32)
    if want.shape != have.shape or want.dtype != have.dtype:
        return False
    if want.dtype.kind != "f":
        return bool((want == have).all())
    scale = float(np.abs(want[np.isfinite(want)]).max(initial=0.0))
    tolerance = 2e-3 if want.dtype == np.float16 else 1e-2 if raw else 1e-4
    return bool(np.allclose(want, have, rtol=tolerance, atol=tolerance * scale, equal_nan=True))


def line(error: BaseException) -> str:
    """The first line of an error's message."""
    return (str(error).strip().splitlines() or [""])[0][:300]


def spot(error: BaseException) -> str:
    """The innermost place of onnxq or its tests that an error went through."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if "site-packages" not in f.filename and not f.filename.startswith("<")]
    frame = (ours or list(frames))[-1]
    return f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}"
