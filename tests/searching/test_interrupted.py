"""A search that is interrupted, or whose time is up: it goes on where it was."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import onnxq
from onnxq import Options
from onnxq.console import deadline
from onnxq.effort import UNTRIED
from onnxq.searching import candidates
from onnxq.searching.user_metric import Run
from tests.searching.hunting import decibels, find, names

pytestmark = pytest.mark.usefixtures("quick")


def test_an_interrupted_search_goes_on_and_ends_the_same(model: Path) -> None:
    options = Options(placement="all", algorithms=("bias_correction",))
    whole = find(model, 45.0, options=options)
    expected = model.with_name("q.onnx").read_bytes()
    count = len({a.digest for a in whole.attempts})
    assert count > 3
    measure, left = decibels(model), [0]

    def stopping(run: Run) -> float:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        return measure(run)

    resumed = []
    for stop in (1, 2, 3, count + 1):
        model.with_name("q.onnx").unlink()
        left[0] = stop
        told = r"is in '.*q\.onnx\.search': the same command goes on from it$" if stop > 1 else "^$"
        with pytest.raises(KeyboardInterrupt, match=told):
            find(model, 45.0, metric=stopping, options=options)
        assert model.with_name("q.onnx.search").exists() == (stop > 1), "nothing was known yet"
        assert not model.with_name("q.onnx").exists()
        found = find(model, 45.0, metric=stopping, options=options)
        assert model.with_name("q.onnx").read_bytes() == expected
        assert [a.name for a in found.attempts] == [a.name for a in whole.attempts]
        resumed.append(found.resumed)
    assert resumed[:2] == [0, 0] and resumed[2] >= 1 and resumed[3] == len(whole.attempts) - 1


def test_a_write_of_the_state_may_be_cut_anywhere(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find(model, 80.0)
    expected = model.with_name("q.onnx").read_bytes()
    measure = decibels(model)
    real, left = os.replace, {"before": 0, "after": 0}

    def cut(source: Any, target: Any) -> None:
        for when in left:
            if when == "after":
                real(source, target)
            left[when] -= 1
            if left[when] == 0:
                raise KeyboardInterrupt

    cuts = 0
    monkeypatch.setattr(os, "replace", cut)
    for stop in range(1, 12):
        for when in left:
            left[when] = stop
            try:
                find(model, 80.0, metric=measure)
            except KeyboardInterrupt:
                cuts += 1
                find(model, 80.0, metric=measure)
            assert model.with_name("q.onnx").read_bytes() == expected
            left[when] = 0
    assert cuts >= 10


def test_time_runs_out_and_the_search_goes_on_later(model: Path) -> None:
    measure = decibels(model)
    found = find(model, 1.0, metric=measure, max_minutes=0.0)
    assert found.stopped and not found.met
    assert names(found) == ["default"]
    assert model.with_name("q.onnx").exists()
    more = find(model, 1.0, metric=measure)
    assert not more.stopped and more.resumed == 1
    assert len(more.attempts) > 5


class Late:
    """Time that is up once so many phases of a title have made a step."""

    def __init__(self, title: str, phases: int = 1) -> None:
        self.title, self.left, self.seen, self.now = title, phases, list[str](), 0.0

    def monotonic(self) -> float:
        return self.now

    @contextmanager
    def phase(self, title: str, total: int | None = None, unit: str = "samples") -> Iterator[Callable[[int], None]]:
        self.seen.append(title)
        self.left -= title == self.title

        def advance(done: int) -> None:
            self.now = 1e6 if self.left <= 0 else 0.0

        yield advance


def test_an_attempt_that_trains_ends_when_the_time_is_up(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = [a for a in onnxq.installed_algorithms() if a.NAME in ("adaround", "bias_correction")]
    monkeypatch.setattr(candidates, "installed_algorithms", lambda: installed)
    measure, late = decibels(model), Late("adaround")
    monkeypatch.setattr(deadline, "time", late)
    found = find(model, 1.0, metric=measure, max_minutes=5.0, reporter=late)
    assert late.seen[-1] == "adaround" and late.seen.count("adaround") == 1
    assert found.stopped and len(found.attempts) > 2 and not any("adaround" in a.name for a in found.attempts)
    assert model.with_name("q.onnx").exists()
    more = find(model, 1.0, metric=measure)
    assert more.resumed == len(found.attempts) and any("adaround" in a.name for a in more.attempts)


def test_a_first_attempt_of_effort_best_ends_with_what_it_has(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    late = Late("find the best")
    monkeypatch.setattr(deadline, "time", late)
    found = find(model, 1.0, options=Options(placement="all", effort="best"), max_minutes=5.0, reporter=late)
    assert found.stopped and names(found) == ["default"]
    (untried,) = (note for note in found.report["notes"] if note.startswith(UNTRIED))
    assert "minmax" in untried
