"""One judge of what any quantizer makes of a case; nothing here asks onnxq."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper
from onnx.external_data_helper import convert_model_to_external_data

from tests.cases.case import Case
from tests.cases.integers import float_layers, reads_integers
from tests.contract import infer, sqnr

__all__ = ["VERDICTS", "Judgement", "Quantizer", "Verdict", "judge"]

Verdict = Literal[
    "fine",
    "crash",
    "invalid file",
    "interface changed",
    "wrong numbers",
    "silently less",
    "input changed",
    "files left",
]
VERDICTS: dict[Verdict, str] = {
    "fine": "right",
    "crash": "an error where a result is right, or one that does not name what is wrong",
    "invalid file": "the checker refuses the result, or onnxruntime does not run it, graph optimizations on and off",
    "interface changed": "inputs or outputs have other names, types or sizes",
    "wrong numbers": "further from float than 8 bits explain, or other numbers with graph optimizations on and off",
    "silently less": "a layer asked for stayed float, or a part of the result is lost, and nothing says so",
    "input changed": "the model given is not what it was",
    "files left": "files beside the result, or after an error",
}
_AGREE = 15.0
"""dB between a result run with and without graph optimizations."""
_FULL = 10_000
"""Bytes that fit on the disk that is full: less than any result of group 16 needs."""
Feeds = Sequence[Mapping[str, NDArray[Any]]]


class Quantizer(Protocol):
    """Writes the quantized model to ``output`` and returns what it says of it, beside warnings and log messages."""

    def __call__(self, case: Case, source: onnx.ModelProto | Path, feeds: Feeds, output: Path) -> str: ...


@dataclass(frozen=True)
class Judgement:
    """What became of a case.

    Attributes:
        verdict: see `VERDICTS`.
        text: what is wrong, on one line; empty where nothing is.
    """

    verdict: Verdict
    text: str = ""


class _FoundError(Exception):
    def __init__(self, verdict: Verdict, text: str) -> None:
        super().__init__(text)
        self.judgement = Judgement(verdict, text)


def judge(case: Case, quantizer: Quantizer) -> Judgement:
    """Give a case to a quantizer, in a folder of its own, and look at what comes out."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            _judge(case, quantizer, Path(folder))
        except _FoundError as found:
            return found.judgement
        finally:
            os.chdir(before)
    return Judgement("fine")


def _judge(case: Case, quantizer: Quantizer, folder: Path) -> None:
    model, feeds = case.make()
    reference = onnx.ModelProto()
    reference.CopyFrom(model)
    given, output = _lay_out(case, model, folder)
    snapshot = _snapshot(given, output)
    said, text, error = "", "", None
    with _listening() as heard:
        try:
            with _full_disk(case.way == "full disk"):
                said = quantizer(case, given, feeds, output)
        except Exception as raised:
            error = raised
    after = _snapshot(given, output)
    if any(after.get(name) != digest for name, digest in snapshot.items()):
        raise _FoundError("input changed", "the model given is not what it was")
    if error is not None:
        text = f"{type(error).__name__}: {_line(str(error))}"
        if not case.refuse or not re.search(case.refuse, str(error)):
            raise _FoundError("crash", text)
    left = sorted(after.keys() - snapshot.keys())
    if error is not None and output.parent.name == "out":
        left += sorted(path.name for path in output.parent.iterdir())
    if left:
        raise _FoundError("files left", f"{', '.join(left)} {f'after {text}' if error is not None else ''}".strip())
    if error is not None:
        return
    if isinstance(given, Path) and "external" in case.way and "overwrite" not in case.way:
        given.parent.rename(folder / "gone")  # the result must stand alone
    _judge_result(case, reference, feeds, output, "\n".join((said, *heard)))


def _judge_result(case: Case, reference: onnx.ModelProto, feeds: Feeds, output: Path, said: str) -> None:
    try:
        result = onnx.load(output)
        onnx.checker.check_model(result, full_check=True)
    except Exception as error:
        raise _FoundError("invalid file", f"the checker: {_line(str(error))}") from None
    types = {value.name: value.type.tensor_type.elem_type for value in reference.graph.input}
    feeds = [
        {n: a.astype(helper.tensor_dtype_to_np_dtype(types[n])) for n, a in s.items() if n in types} for s in feeds
    ]
    try:
        expected = infer(reference if case.same is None else case.same(), feeds, optimize=False)
    except Exception as error:
        raise _FoundError("invalid file", f"a result of a model that does not run: {_line(str(error))}") from None
    _judge_interface(reference, result)
    optimized, plain = (_run(result, feeds, optimize=optimize) for optimize in (True, False))
    for name, wanted in expected.items():
        _judge_numbers(case, name, wanted, optimized[name], plain[name], said)
    _judge_layers(case, result, said)


def _run(result: onnx.ModelProto, feeds: Feeds, *, optimize: bool) -> dict[str, list[NDArray[Any]]]:
    try:
        return infer(result, feeds, optimize=optimize)
    except Exception as error:
        how = "with" if optimize else "without"
        raise _FoundError("invalid file", f"{how} graph optimizations: {_line(str(error))}") from None


def _judge_interface(reference: onnx.ModelProto, result: onnx.ModelProto) -> None:
    constants = {tensor.name for tensor in reference.graph.initializer} if reference.ir_version < 4 else set[str]()
    for what in ("input", "output"):
        before, after = (
            [value for value in getattr(model.graph, what) if value.name not in constants]
            for model in (reference, result)
        )
        if [v.name for v in before] != [v.name for v in after]:
            raise _FoundError("interface changed", f"{what}s {[v.name for v in before]} → {[v.name for v in after]}")
        for old, new in zip(before, after, strict=True):
            if _kind(old)[0] != _kind(new)[0] or not _same_sizes(_kind(old)[1], _kind(new)[1]):
                raise _FoundError("interface changed", f"{what} {old.name!r}: {_kind(old)} → {_kind(new)}")


def _kind(value: onnx.ValueInfoProto) -> tuple[int, list[int | None]]:
    """Element type and the sizes that are fixed."""
    tensor = value.type.tensor_type
    return tensor.elem_type, [d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim]


def _same_sizes(old: list[int | None], new: list[int | None]) -> bool:
    """A size that was free must stay free; one may be written down that was not known for an output."""
    return len(old) == len(new) and all(a == b for a, b in zip(old, new, strict=True) if a is not None)


def _judge_numbers(case: Case, name: str, wanted: Any, optimized: Any, plain: Any, said: str) -> None:
    excused = bool(case.say and re.search(case.say, said))
    for want, *got in zip(wanted, optimized, plain, strict=True):
        for have in got:
            if have.dtype != want.dtype or have.ndim != want.ndim:
                raise _FoundError("wrong numbers", f"output {name!r} is {have.dtype}, was {want.dtype}")
            if want.dtype.kind == "f" and (have.shape != want.shape or not np.isfinite(have[np.isfinite(want)]).all()):
                raise _FoundError("wrong numbers", f"output {name!r} is not finite, or of another size")
    if any(want.dtype.kind != "f" for want in wanted):
        return
    for how, got in (("with", optimized), ("without", plain)):
        score = sqnr(wanted, got)
        if case.least is not None and score < case.least and not excused:
            raise _FoundError("wrong numbers", f"output {name!r} has {score:.1f} dB {how} graph optimizations")
    between = sqnr(plain, optimized)
    if between < _AGREE:
        raise _FoundError("wrong numbers", f"output {name!r}: {between:.1f} dB between optimizations on and off")
    if case.median is not None and not excused:
        median = float(np.median([sqnr([want], [have]) for want, have in zip(wanted, optimized, strict=True)]))
        if median < case.median:
            raise _FoundError("silently less", f"the median sample of {name!r} has {median:.1f} dB, not said")
    if case.channel is not None and not excused:
        channels = range(wanted[0].shape[1])
        scores = [sqnr([w[:, c] for w in wanted], [h[:, c] for h in optimized]) for c in channels]
        if min(scores) < case.channel:
            where = int(np.argmin(scores))
            raise _FoundError("silently less", f"channel {where} of {name!r} has {min(scores):.1f} dB, not said")


def _judge_layers(case: Case, result: onnx.ModelProto, said: str) -> None:
    excluded = case.asked.get("exclude", ())
    for name in excluded:
        if reads_integers(result, name):
            raise _FoundError("silently less", f"the excluded layer {name!r} reads integers")
    for name, op in float_layers(result):
        known = name in excluded or (name and re.search(rf"(?<!\w){re.escape(name)}(?!\w)", said))
        if not known:
            raise _FoundError("silently less", f"{op} {name!r} stayed float, not said")


def _lay_out(case: Case, model: onnx.ModelProto, folder: Path) -> tuple[onnx.ModelProto | Path, Path]:
    """The model as it is given, and where the result goes."""
    (folder / "in").mkdir()
    (folder / "out").mkdir()
    path, output = folder / "in" / "m.onnx", folder / "out" / "q.onnx"
    if case.way == "memory":
        return model, output
    if "external" in case.way:
        one = case.way != "bare external"
        location = "weights.bin" if one else None
        convert_model_to_external_data(model, all_tensors_to_one_file=one, location=location, size_threshold=1024)
    onnx.save(model, path)
    if case.way == "bare external":
        bare = onnx.load(path, load_external_data=False)
        for tensor in bare.graph.initializer:
            kept = [(entry.key, entry.value) for entry in tensor.external_data if entry.key == "location"]
            del tensor.external_data[:]
            for key, value in kept:
                tensor.external_data.add(key=key, value=value)
        onnx.save(bare, path)
    elif case.way == "short external":
        data = path.parent / "weights.bin"
        data.write_bytes(data.read_bytes()[:100])
    elif case.way == "missing external":
        (path.parent / "weights.bin").unlink()
    elif case.way == "link":
        link = folder / "in" / "link.onnx"
        link.symlink_to(path)
        return link, output
    return path, path if "overwrite" in case.way else output


def _snapshot(given: onnx.ModelProto | Path, output: Path) -> dict[str, object]:
    """Digests of what is given, but of the file to be overwritten."""
    if isinstance(given, onnx.ModelProto):
        return {"": hashlib.sha256(given.SerializeToString(deterministic=True)).hexdigest()}
    files = sorted(path for path in given.parent.iterdir() if path != output)
    return {p.name: (p.is_symlink(), hashlib.sha256(p.read_bytes()).hexdigest()) for p in files}


@contextmanager
def _full_disk(full: bool) -> Iterator[None]:
    """Every write beyond some bytes of a file fails."""
    if not full:
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FULL, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def _listening() -> Iterator[list[str]]:
    """Collects warnings and log messages of at least that level."""
    heard: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(record.getMessage())

    handler, root = Handler(logging.WARNING), logging.getLogger()
    root.addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield heard
        heard.extend(str(warning.message) for warning in caught)
    finally:
        root.removeHandler(handler)


def _line(text: str) -> str:
    """The first line that says something, without paths and of bounded length."""
    first = next((line.strip() for line in text.splitlines() if line.strip()), "no text")
    return re.sub(r"(/tmp|/var)/\S*/", "", first)[:160]
