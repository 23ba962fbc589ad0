"""For all tests."""

from __future__ import annotations

import gc


def pytest_collection_finish() -> None:
    """What is known of thousands of tests is out of the collector's way: it is run for every segment of weights."""
    gc.collect()
    gc.freeze()
