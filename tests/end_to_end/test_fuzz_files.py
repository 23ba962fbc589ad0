"""Damaged files: a sample of what ``tools/fuzz_files.py`` reads by the thousand."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.fuzzing.bytes import KINDS, Bench, damaged, prepare

_SEEDS = 12


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    pytest.importorskip("torch")
    made = prepare(tmp_path_factory.mktemp("files"))
    yield made
    made.stop()


@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_read_or_refused(bench: Bench, kind: str) -> None:
    said = [bench.read(kind, seed) for seed in range(_SEEDS)]
    assert not [text for text in said if text.startswith("FAULT")], said
    assert any(text.startswith("refused") for text in said)


def test_sound_files_are_read(bench: Bench) -> None:
    """So that a refusal says something of the damage: seeds that leave a file as it is."""
    assert {kind: bench.read(kind, -1) for kind in KINDS} == dict.fromkeys(KINDS, "read")


def test_damage_is_the_same_each_time_and_is_damage() -> None:
    content = bytes(range(256)) * 4
    made = [damaged(content, np.random.default_rng(seed)) for seed in range(50)]
    assert made == [damaged(content, np.random.default_rng(seed)) for seed in range(50)]
    assert sum(data != content for data in made) > 40
    assert len(set(map(len, made))) > 5
