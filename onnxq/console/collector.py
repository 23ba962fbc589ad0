"""Python's search for unused cycles of objects, for a process that runs one command and ends.

A graph of some hundred nodes is objects enough to set off many searches, each through all that is loaded. By Python's
own numbers, a sixth of the processor time of ``onnxq quantize`` goes into them. Where the search for what hurts makes a
graph of 1,800 nodes over and over, searching five times as often as here costs a tenth more (20,000 objects: 72.6 CPU
seconds for 61.7 and 585 MB for 634).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["keep_loaded", "seldom_collecting"]

_THRESHOLDS = (100_000, 5, 2)
"""Objects made before the youngest are searched, and such searches before the next older ones are."""


@contextmanager
def seldom_collecting() -> Iterator[None]:
    """Search less often while the context lasts."""
    before = gc.get_threshold()
    gc.set_threshold(*_THRESHOLDS)
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


def keep_loaded() -> None:
    """What is there by now, libraries above all, stays until the end: no search looks through it again."""
    gc.freeze()
