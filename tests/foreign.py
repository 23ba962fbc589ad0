"""Models that nobody here wrote: those that ship with the onnx package, with their data."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

__all__ = ["GROUPS", "Case", "Feed", "cases"]

Feed = dict[str, Any]

GROUPS = ("node", "node, lowered", "node, constants", "simple", "pytorch-operator", "pytorch-converted", "light")
"""``node, lowered`` are those node tests whose opset onnxruntime does not read yet, stamped with one that it does;
``node, constants`` are all that it can read, with every input but the first float one made a constant."""
_OPSET, _IR_VERSION = 25, 13
"""Read by onnxruntime 1.31 and TensorRT."""
_DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)


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
