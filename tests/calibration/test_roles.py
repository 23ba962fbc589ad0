"""Who gets which of the samples held back: all efforts verify on the same ones, which nothing was decided by."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from onnxq.calibration.keep import Keeper
from onnxq.calibration.roles import (
    exchanged,
    few,
    guards_teach,
    held_back,
    samples_to_verify,
    spread,
    to_judge_by,
    to_learn_from,
)
from onnxq.calibration.statistics import KeptSample
from onnxq.effort import samples_to_keep
from onnxq.options import Options

TOTALS = (1, 2, 3, 7, 8, 9, 10, 15, 16, 17, 24, 31, 32, 33, 40, 48, 63, 64, 65, 100, 128, 129, 300, 1000)
_BYTES = 4 * 100


def _kept(total: int, most: int, most_bytes: int = 1 << 30) -> list[KeptSample]:
    keeper = Keeper(most, most_bytes, total)
    for index in range(total):
        if keeper.wants(index):
            keeper.offer(index, {"x": np.zeros(100, np.float32)}, {})
    return keeper.kept


def _indices(samples: object) -> set[int]:
    assert isinstance(samples, list)
    return {sample.index for sample in samples}


@pytest.mark.parametrize("most_bytes", (1 << 30, 40 * _BYTES, 16 * _BYTES, 9 * _BYTES, 5 * _BYTES, _BYTES))
@pytest.mark.parametrize("total", TOTALS)
def test_all_efforts_decide_and_verify_on_the_same_samples(total: int, most_bytes: int) -> None:
    default = _kept(total, samples_to_keep(Options()), most_bytes)
    best = _kept(total, samples_to_keep(Options(effort="best")), most_bytes)
    assert len(best) >= len(default) >= 1
    assert _indices(few(default)) == _indices(few(best))
    verified, of_best = samples_to_verify(default, False), samples_to_verify(best, True)
    assert _indices(of_best) <= _indices(verified), "nothing was learned from the others by default"
    if len(best) > 32:
        assert len(of_best) >= 8
    assert min(total, most_bytes // _BYTES, 8) // 2 <= len(of_best) <= len(verified) <= 24
    if len(default) > 16:
        assert len(verified) == len(default) - len(few(default)) >= 12
    for kept in (default, best):
        assert _indices(samples_to_verify(kept, True)) <= _indices(samples_to_verify(kept, False))
        away = samples_to_verify(kept, False, at_home=False)
        assert _indices(away) <= _indices(samples_to_verify(kept, False))
        assert len(away) == min(len(samples_to_verify(kept, False)), 8)


@pytest.mark.parametrize("total", TOTALS)
def test_nobody_is_judged_by_what_it_has_learned_from(total: int) -> None:
    kept = _kept(total, 64)
    learned, guards, judges, decided = (_indices(list(of(kept))) for of in (to_learn_from, held_back, to_judge_by, few))
    assert learned and guards and judges and decided
    verified = _indices(samples_to_verify(kept, True))
    if len(kept) > 1:
        assert not learned & guards and not learned & judges
    if len(kept) > 8:
        assert verified <= judges | guards and not verified & decided and not verified & learned
    if len(kept) > 16:
        assert not guards & verified and guards_teach(kept)
        assert not guards & judges and learned | guards | judges == _indices(kept)
        assert len(learned) == len(kept) // 2


@pytest.mark.parametrize("total", TOTALS)
def test_in_the_end_everybody_has_judged_what_had_not_seen_it(total: int) -> None:
    kept = [KeptSample(k.index, {"x": np.array(k.index)}, {}) for k in _kept(total, 64)]
    turns = list(exchanged(kept))
    assert turns[0][0] == kept or all(a.feeds is b.feeds for a, b in zip(turns[0][0], kept, strict=True))

    def who(samples: Sequence[KeptSample]) -> list[int]:
        return [int(sample.feeds["x"]) for sample in samples]

    judged: list[int] = []
    for arranged, judges in turns:
        assert sorted(who(arranged)) == who(kept) and [s.index for s in arranged] == [s.index for s in kept]
        assert not set(who(judges)) & set(who(to_learn_from(arranged))) or len(kept) == 1
        assert not set(who(judges)) & set(judged), "nobody twice"
        judged += who(judges)
    assert len(judged) >= 0.6 * len(kept)
    if len(kept) in (2, 16, 32, 64):
        assert sorted(judged) == who(kept)


def test_some_samples_are_spread_over_all() -> None:
    kept = [KeptSample(index, {}, {}) for index in range(19)]
    assert [s.index // 4 for s in spread(kept[:16], 4)] == [0, 1, 2, 3], "one of each quarter"
    assert [s.index for s in spread(kept[:3], 4)] == [0, 1, 2]
    assert {s.index % 2 for s in spread(kept[:16], 8)} == {0, 1}, "kinds of samples that come in turn"
