"""What is observed for all targets, and that no other target's fault ends a run."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxq
from onnxq import Options, observe
from onnxq.backend import Backend
from onnxq.backends import onnxruntime
from onnxq.calibration.digest import model_digest
from onnxq.console.progress import Advance, Silent
from onnxq.graph.recognition.groups import Group, find_groups
from onnxq.ort.session import Session
from onnxq.planning import question
from tests.models import build, feeds_for, images, normal


def model() -> onnx.ModelProto:
    return build(
        "(float[1, 3, 6, 6] x) => (float[1, 4, 6, 6] y) { c = Conv <pads = [1, 1, 1, 1]> (x, w) y = Relu (c) }",
        w=normal(4, 3, 3, 3),
    )


def broken(**how: Any) -> Backend:
    return replace(onnxruntime.BACKEND, name="broken", **how)


def fails(model: Any) -> Any:
    raise KeyError("no such thing")


def in_a_row() -> Backend:
    row = replace(onnxruntime.BACKEND.rules["Conv"], when=fails)
    return broken(rules={**onnxruntime.BACKEND.rules, "Conv": row})


@pytest.mark.parametrize("make", [in_a_row, lambda: broken(rewrite=fails)], ids=["row", "rewrite"])
def test_the_fault_of_a_target_that_nobody_asked_for_is_told_and_ends_no_run(
    make: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    feeds = feeds_for(model(), 2)
    expected = onnxq.quantize(model(), feeds).qparams
    monkeypatch.setattr(observe, "backends", lambda: [onnxruntime.BACKEND, make()])
    with caplog.at_level(logging.WARNING, logger="onnxq"):
        assert onnxq.quantize(model(), feeds).qparams.keys() == expected.keys()
    (said,) = [r.getMessage() for r in caplog.records if "broken" in r.getMessage()]
    assert "KeyError" in said and "no such thing" in said and "not observed" in said


def test_the_fault_of_the_target_asked_for_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observe, "backends", lambda: [in_a_row()])
    found = ir.from_proto(model())
    assert observe.observable(found, onnxq.Options()) == []
    with pytest.raises(KeyError, match="no such thing"):
        observe.observable(found, onnxq.Options(), ["broken"])


def test_chains_are_recognized_once_for_all_targets_that_plan_the_same_model(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[ir.Model] = []

    def counted(model: ir.Model) -> list[Group]:
        looked.append(model)
        return find_groups(model)

    for module in (observe, question):
        monkeypatch.setattr(module, "find_groups", counted)
    assert observe.observable(ir.from_proto(model()), onnxq.Options(exclude=("Relu",)))
    assert len(looked) == len({id(found) for found in looked})
    assert len(looked) <= 4, "as it is, at the opset that some need, and as openvino and vitis write it"


def test_a_sample_is_named_by_its_place_in_the_data_where_some_are_drawn(tmp_path: Path) -> None:
    model = build(
        "(float[1, 4] x) => (float[1, 4] y) { h = Mul (x, two) y = Sqrt (h) }", two=np.array([2.0], np.float32)
    )
    rows = np.arange(1, 65, dtype=np.float32).reshape(16, 1, 4)
    drawn = onnxq.calibrate(model, {"x": rows}, options=Options(samples=4, keep=4), output=tmp_path / "s.npz")
    places = [int(sample.feeds["x"].flat[0] - 1) // 4 for sample in drawn.kept]
    assert places != [0, 1, 2, 3] and [sample.place for sample in drawn.kept] == places
    assert [sample.place for sample in onnxq.Statistics.load(tmp_path / "s.npz").kept] == places
    rows[places[2]] = -1.0
    again = onnxq.calibrate(model, {"x": rows}, options=Options(samples=4, keep=4))
    assert again.tensors["y"].nan_sample == places[2]
    told = [found.what for found in onnxq.check(model, data={"x": rows}, options=Options(samples=4))]
    assert next(what for what in told if "NaN" in what).endswith(f"sample {places[2]}"), "check names it alike"
    rows[:, 0, 0] = 1.0
    result = onnxq.quantize(model, {"x": rows}, backend="tvm", options=Options(samples=4, keep=4, placement="all"))
    assert result.verification is not None
    assert result.verification.outputs["y"].worst_sample in {*places} - {places[2]}


def test_that_the_first_samples_are_used_is_said_where_their_number_is_unknown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = build("(float[1, 4] x) => (float[1, 4] y) { y = Neg (x) }")
    made = onnxq.calibrate(model, lambda: iter(images(1, 4)), options=onnxq.Options(samples=4))
    assert made.samples == 4
    assert any("the first 4 are used" in record.getMessage() for record in caplog.records)


def test_memory_of_calibration_is_handed_back_once_its_sessions_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    alive: set[int] = set()
    seen: list[int] = []
    before, after = Session.__init__, lambda key: alive.discard(key)

    def opened(self: Session, *args: Any, **how: Any) -> None:
        before(self, *args, **how)
        alive.add(id(self))
        weakref.finalize(self, after, id(self))

    monkeypatch.setattr(Session, "__init__", opened)
    monkeypatch.setattr(observe, "trim", lambda: seen.append(len(alive)))
    onnxq.calibrate(model(), feeds_for(model(), 2))
    assert seen == [0]


def test_a_model_is_told_apart_only_where_its_statistics_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[ir.Model] = []

    def counted(of: ir.Model) -> str:
        told.append(of)
        return model_digest(of)

    for name in ("onnxq.observe", "onnxq.calibration.collect", "onnxq.quantize"):
        monkeypatch.setattr(import_module(name), "model_digest", counted)
    onnxq.quantize(model(), feeds_for(model(), 2))
    assert not told
    statistics = onnxq.calibrate(model(), feeds_for(model(), 2))
    assert len(told) == 1
    onnxq.quantize(model(), statistics=statistics)
    assert len(told) == 2, "to see that they are of this model"


def test_planning_for_all_targets_is_shown_where_it_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[str, list[int]]] = []

    class Told(Silent):
        @contextmanager
        def phase(self, title: str, total: int | None = None, unit: str = "samples") -> Iterator[Advance]:
            shown.append((title, []))
            yield shown[-1][1].append

    onnxq.calibrate(model(), feeds_for(model(), 2), reporter=Told())
    assert [title for title, _ in shown] == ["calibrate"]
    shown.clear()
    monkeypatch.setattr(observe, "_MANY", 2)
    onnxq.calibrate(model(), feeds_for(model(), 2), reporter=Told())
    count = len(onnxq.backends())
    assert shown[0] == ("find tensors to observe", list(range(count + 1)))
