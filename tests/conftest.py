"""For all tests: what they find does not go by chance, nor by how busy the machine is."""

from __future__ import annotations

import gc
import math
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from onnxq.measuring import timing
from onnxq.notes import cautions

settings.register_profile(
    "the same at every run", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("the same at every run")

_LIMITS = (
    "onnxq.checks.constant._PATIENCE",
    "onnxq.measuring.random_inputs._SECONDS",
    "onnxq.measuring.samples_to_judge._SECONDS",
    "onnxq.verbs.making._SUSPECT_SECONDS",
)
"""Seconds after which a run measures less; the tests of each set it."""


@pytest.fixture(scope="session", autouse=True)
def _as_long_as_it_takes() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for limit in _LIMITS:
            patch.setattr(limit, math.inf)
        yield


_OF_SPEED = {(cautions, "_SLOW"): 0.0, (timing, "_SHORT_BUDGET"): 0.0, (timing, "_LONG_BUDGET"): 0.0}
_FOR_USERS = {(module, name): getattr(module, name) for module, name in _OF_SPEED}


@pytest.fixture(scope="session", autouse=True)
def _not_a_word_of_speed() -> Iterator[None]:
    """A result measured beside other tests is slower than float by chance: a glance is short, and nothing is said."""
    with pytest.MonkeyPatch.context() as patch:
        for (module, name), value in _OF_SPEED.items():
            patch.setattr(module, name, value)
        yield


@pytest.fixture
def speed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Speed is measured, and what is slower than float warned of, as outside of tests."""
    for (module, name), value in _FOR_USERS.items():
        monkeypatch.setattr(module, name, value)


@pytest.fixture(scope="session", autouse=True)
def _same_layers_in_integers() -> Iterator[None]:
    """By the costs of one processor, whichever runs the tests."""
    from onnxq.backends.onnxruntime import BACKEND

    slower = BACKEND.overflowing
    object.__setattr__(BACKEND, "overflowing", None)
    yield
    object.__setattr__(BACKEND, "overflowing", slower)


@pytest.fixture(autouse=True)
def _same_random_numbers() -> None:
    """Of torch, whichever tests ran before."""
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


def pytest_collection_finish() -> None:
    """What is known of thousands of tests is out of the collector's way: it is run for every segment of weights."""
    gc.collect()
    gc.freeze()
