"""Models that nobody here wrote: those that ship with the onnx package, and the verdict on what becomes of them.

Every model goes through `check`, `plan` and `quantize` and must come out in one of three ways: quantized (a valid
file that runs, with the same interface), untouched (nothing quantized, equal numbers) or refused (an error of
`onnxq.errors` that says what and where, and that `check` foretells). Everything else is a fault.
"""

from __future__ import annotations

import importlib
import os
import tempfile
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, numpy_helper

from onnxq import Options, Quantized, check, plan, quantize
from onnxq.errors import OnnxqError, VerificationError
from onnxq.options import Placement
from onnxq.session import Session
from tests.contract import assert_contract

__all__ = ["GROUPS", "Case", "Outcome", "Verdict", "cases", "judge"]

Outcome = Literal["quantized", "untouched", "refused", "FAULT"]
Feed = dict[str, Any]
Frames = Sequence[traceback.FrameSummary]

GROUPS = ("node", "node, lowered", "node, constants", "simple", "pytorch-operator", "pytorch-converted", "light")
"""``node, lowered`` are those node tests whose opset onnxruntime does not read yet, stamped with one that it does;
``node, constants`` are all that it can read, with every input but the first float one made a constant."""
_OPSET, _IR_VERSION = 25, 13
"""Read by onnxruntime 1.31 and TensorRT."""
_DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
_RAW = (TensorProto.BFLOAT16, *range(TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E5M2FNUZ + 1))
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
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
class Case:
    """A model with the data it ships with.

    Attributes:
        group: one of `GROUPS`.
        name: of the test.
        source: its file, or the serialized model.
        feeds: samples, by input name; made up where none ship.
    """

    group: str
    name: str
    source: Path | bytes
    feeds: tuple[Feed, ...]


@dataclass(frozen=True)
class Verdict:
    """What became of a model.

    Attributes:
        outcome: see the module.
        text: the first line of the error, what is wrong, or how many nodes are quantized.
    """

    outcome: Outcome
    text: str


# -- the models


def cases(groups: Sequence[str] = GROUPS, modules: tuple[str, ...] = ()) -> Iterator[Case]:
    """The models of some groups, by name.

    Args:
        groups: of `GROUPS`.
        modules: of the node tests only those that these modules of ``onnx.backend.test.case.node`` hold; making all
            takes seconds.
    """
    for group in groups:
        if group == "node":
            yield from _node_cases(modules)
        elif group == "node, lowered":
            yield from (low for case in _node_cases(modules) if (low := _lowered(case)) not in (case, None))
        elif group == "node, constants":
            lowered = [low for case in _node_cases(modules) if (low := _lowered(case)) is not None]
            yield from (frozen for case in lowered if (frozen := _frozen(case)) is not None)
        elif group == "light":
            yield from (Case(group, p.stem, p, (_made_up(p),)) for p in sorted((_DATA / group).glob("*.onnx")))
        else:
            paths = sorted((_DATA / group).glob("*/model.onnx"))
            yield from (Case(group, p.parent.name, p, tuple(_shipped(p))) for p in paths)


@cache
def _node_cases(modules: tuple[str, ...]) -> tuple[Case, ...]:
    with warnings.catch_warnings():  # the package computes infinities and casts out of range on purpose
        warnings.simplefilter("ignore")
        package = importlib.import_module("onnx.backend.test.case.node")
        for module in modules:
            importlib.import_module(f"{package.__name__}.{module}")  # adds its tests to those of the package
        tests = list(package._NodeTestCases) if modules else package.collect_testcases(None)
    return tuple(
        Case("node", t.name, t.model.SerializeToString(), tuple(_feed(t.model, inputs) for inputs, _ in t.data_sets))
        for t in sorted(tests, key=lambda test: test.name)
        if t.model is not None and t.data_sets
    )


def _feed(model: onnx.ModelProto, arrays: Sequence[Any]) -> Feed:
    constants = {tensor.name for tensor in model.graph.initializer}
    names = [info.name for info in model.graph.input if info.name not in constants]
    feed = {name: _array(value) for name, value in zip(names, arrays, strict=False)}
    return {name: value for name, value in feed.items() if value is not None}


def _array(value: Any) -> Any:
    if isinstance(value, TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, (list, tuple)):
        return [_array(item) for item in value]
    return value if value is None else np.asarray(value)


def _lowered(case: Case) -> Case | None:
    """A node test as it is, or stamped with an older opset where that has the operator too; None where it has not."""
    assert isinstance(case.source, bytes)
    model = onnx.load_from_string(case.source)
    stamps = [stamp for stamp in model.opset_import if stamp.domain in ("", "ai.onnx")]
    if model.ir_version <= _IR_VERSION and all(stamp.version <= _OPSET for stamp in stamps):
        return case
    model.ir_version = min(model.ir_version, _IR_VERSION)
    for stamp in stamps:
        stamp.version = min(stamp.version, _OPSET)
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception:  # the checker's and shape inference's own
        return None
    return Case("node, lowered", case.name, model.SerializeToString(), case.feeds)


def _frozen(case: Case) -> Case | None:
    """A node test with its inputs but one as constants, the form that weights have in models."""
    assert isinstance(case.source, bytes)
    model, (feed, *_) = onnx.load_from_string(case.source), case.feeds
    floats = [i.name for i in model.graph.input if i.type.tensor_type.elem_type in _FLOATS and i.name in feed]
    others = {n: a for n, a in feed.items() if n not in floats[:1] and isinstance(a, np.ndarray)}
    if not floats or not others:
        return None
    kept = [info for info in model.graph.input if info.name not in others]
    model.ir_version = max(model.ir_version, 4)  # before, constants were listed as inputs
    del model.graph.input[:]
    model.graph.input.extend(kept)
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in others.items())
    feeds = tuple({n: a for n, a in sample.items() if n not in others} for sample in case.feeds)
    return Case("node, constants", case.name, model.SerializeToString(), feeds)


def _shipped(path: Path) -> Iterator[Feed]:
    model = onnx.load(path)
    for folder in sorted(path.parent.glob("test_data_set_*")):
        files = sorted(folder.glob("input_*.pb"), key=lambda file: int(file.stem.rpartition("_")[2]))
        infos = [i for i in model.graph.input if i.name not in {t.name for t in model.graph.initializer}]
        values: list[Any] = []
        for info, file in zip(infos, files, strict=False):
            if info.type.HasField("sequence_type"):
                values.append(numpy_helper.to_list(onnx.SequenceProto.FromString(file.read_bytes())))
            else:
                values.append(numpy_helper.to_array(TensorProto.FromString(file.read_bytes())))
        yield _feed(model, values)


def _made_up(path: Path) -> Feed:
    rng, model = np.random.default_rng(0), onnx.load(path)
    constants = {tensor.name for tensor in model.graph.initializer}
    infos = [info for info in model.graph.input if info.name not in constants]
    sizes = {i.name: [d.dim_value or 1 for d in i.type.tensor_type.shape.dim] for i in infos}
    return {name: rng.standard_normal(size).astype(np.float32) for name, size in sizes.items()}


# -- the verdict


def judge(case: Case, backend: str = "onnxruntime", placement: Placement = "all") -> Verdict:
    """Check, plan and quantize a model, and look at what comes out; Python's warnings count as errors."""
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("error")
        try:
            return _judged(case, backend, Options(placement=placement), Path(folder))
        except AssertionError as error:
            return Verdict("FAULT", f"broken contract: {_line(error)} ({_spot(error)})")
        except Exception as error:
            return Verdict("FAULT", f"{type(error).__name__}: {_line(error)} ({_spot(error)})")


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
        return Verdict("FAULT", f"the final check fails: {_line(error)}")
    except OnnxqError as error:
        refusal = error
    assert _content(source) == before, "the model given was changed"
    if refusal is not None:
        assert refusal.what.strip() and refusal.where, f"an error without what or where: {_line(refusal)}"
        assert foretold, f"refused, and check did not say so: {_line(refusal)}"
        ours = (
            any(words in refusal.what for words in _BY_DESIGN)
            or _run(reference, feeds) is None
            or not _valid(reference)
        )
        assert ours, f"refused, though onnxruntime runs the float model: {_line(refusal)}"
        return Verdict("refused", f"{type(refusal).__name__}: {_line(refusal)}")
    assert not foretold, f"check says what is not so: {foretold[0].where}: {foretold[0].what}"
    assert planned >= set(quantized.plan.quantized) or backend != "onnxruntime", "more is quantized than was planned"
    _assert_written(reference, quantized)
    _assert_works(reference, quantized, feeds)
    count = len(quantized.plan.quantized) + len(quantized.plan.stored)
    return Verdict("quantized", f"{count} nodes") if count else Verdict("untouched", _reasons(quantized))


def _content(source: Path | onnx.ModelProto) -> bytes:
    return source.read_bytes() if isinstance(source, Path) else source.SerializeToString(deterministic=True)


def _reasons(quantized: Quantized) -> str:
    return "; ".join(dict.fromkeys(f"{kept.op}: {kept.reason}" for kept in quantized.plan.kept_float)) or "no floats"


def _assert_written(reference: onnx.ModelProto, quantized: Quantized) -> None:
    """The files are there, and the ONNX model among them is valid with the same interface."""
    assert quantized.files, "nothing was written"
    assert all(path.stat().st_size for path in quantized.files), "an empty file was written"
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


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0][:300]


def _spot(error: BaseException) -> str:
    """The innermost place of onnxq or its tests that an error went through."""
    frames: Frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if "site-packages" not in f.filename and not f.filename.startswith("<")]
    frame = (ours or list(frames))[-1]
    return f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}"


def summary(verdicts: Mapping[str, Verdict]) -> str:
    """Counts of the outcomes, for messages."""
    outcomes = [verdict.outcome for verdict in verdicts.values()]
    return ", ".join(f"{outcomes.count(o)} {o}" for o in dict.fromkeys(outcomes))
