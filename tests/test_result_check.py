"""Results on the way are only looked at; the one that is taken is checked in full."""

from __future__ import annotations

from typing import Any

import pytest

import onnxq
from onnxq import Options
from onnxq.console.progress import Silent
from onnxq.errors import ExecutionError, VerificationError
from onnxq.measuring import final_check
from onnxq.ort.session import Session
from onnxq.prepare import Prepared
from onnxq.result_check import ResultCheck
from tests.deciding.test_mend import DATA, ruined
from tests.models import verified_sqnr


def counted(monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], list[bool]]:
    """What is asked of checks, and whether each session that they open optimizes, as they go on."""
    asked: list[str] = []
    opened: list[bool] = []

    class Counted(Session):
        def __init__(self, *args: Any, **how: Any) -> None:
            super().__init__(*args, **how)
            opened.append(how.get("optimize", True))

    for name in ("look", "complete"):
        before = getattr(ResultCheck, name)

        def told(self: ResultCheck, *given: Any, name: str = name, before: Any = before) -> Any:
            asked.append(name)
            return before(self, *given)

        monkeypatch.setattr(ResultCheck, name, told)
    monkeypatch.setattr(final_check, "Session", Counted)
    return asked, opened


def test_the_speed_of_a_mended_result_alone_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, opened = counted(monkeypatch)
    result = onnxq.quantize(ruined(), DATA)
    assert "first" not in result.plan.quantized and verified_sqnr(result) > 18
    looks = asked.count("look")
    assert looks > 1 and asked == ["look"] * looks + ["complete"]
    assert opened == [True] * looks + [True, False, True], "then the last anew, it without optimizations, and float"
    checked = result.verification
    assert checked is not None and checked.speedup and checked.float_seconds and checked.plain_sqnr is not None


def test_a_result_that_nothing_is_searched_for_stays_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    _, opened = counted(monkeypatch)
    onnxq.quantize(ruined(), DATA, options=Options(effort="fast"))
    assert opened == [True, False, True]


def test_a_result_that_was_not_looked_at_last_is_loaded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a step did not help: all is told of the result before it."""
    found: list[ResultCheck] = []
    before = ResultCheck.complete

    def forgetful(self: ResultCheck, *given: Any) -> Any:
        self.forget()
        found.append(self)
        return before(self, *given)

    monkeypatch.setattr(ResultCheck, "complete", forgetful)
    _, opened = counted(monkeypatch)
    run_on: list[int] = []
    compared = final_check._compared

    def told(reference: Any, session: Any, kept: Any, rows: Any) -> Any:
        run_on.append(len(kept))
        return compared(reference, session, kept, rows)

    monkeypatch.setattr(final_check, "_compared", told)
    fast = onnxq.quantize(ruined(), DATA, options=Options(effort="fast"))
    assert len(found) == 1 and opened == [True, True, False, True]
    assert run_on[0] > 1 and run_on[1:] == [1], "how far it is from float is known"
    assert fast.verification is not None and fast.verification.speedup


def test_a_result_that_runs_only_with_optimizations_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fails(Session):
        def __init__(self, *args: Any, **how: Any) -> None:
            if not how.get("optimize", True):
                raise ExecutionError("no kernel", where="node 'first'")
            super().__init__(*args, **how)

    monkeypatch.setattr(final_check, "Session", Fails)
    with pytest.raises(VerificationError, match="no kernel"):
        onnxq.quantize(ruined(), DATA)


def test_what_is_told_is_of_the_result_asked_for_not_of_the_one_looked_at_last() -> None:
    """A step that did not help was looked at last: the result before it is loaded again, not taken for that one."""
    prepared, options = Prepared(ruined(), Options()), Options(effort="fast")
    statistics = onnxq.calibrate(ruined(), DATA)
    check = ResultCheck(prepared, statistics, options, Silent())
    good, other = (onnxq.quantize(ruined(), statistics=statistics, options=options) for _ in range(2))
    seen: list[Any] = []
    looked = check._looked

    def told(quantized: Any, *, again: bool = False) -> Any:
        seen.append(quantized)
        return looked(quantized, again=again)

    check._looked = told  # type: ignore[method-assign]
    first = check.look(good)
    check.look(other)
    check.complete(good, first)
    assert seen == [good, other, good]
