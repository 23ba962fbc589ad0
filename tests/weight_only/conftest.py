"""For the tests of weight-only quantization."""

from __future__ import annotations

import gc

import pytest


@pytest.fixture(scope="module", autouse=True)
def _cycles_of_others_are_not_looked_for() -> None:
    """Cycles are collected behind each segment of a model: not through all that tests before have left."""
    gc.collect()
    gc.freeze()
