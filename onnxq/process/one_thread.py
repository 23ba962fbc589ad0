"""Matrix products of NumPy on one thread, for as long as any run in the process wants it so."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from threadpoolctl import threadpool_limits

__all__ = ["one_blas_thread"]

_LOCK = threading.Lock()
_limits: list[threadpool_limits] = []
"""One for each run that wants it; the first knows how many threads there were before."""


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Many small products: threads that wait for each other only cost.

    How many threads BLAS takes is one number of the whole process. Runs in several threads overlap, and end in any
    order: it is set by the first that begins, and is as it was before when the last has ended.
    """
    with _LOCK:
        _limits.append(_limits[0] if _limits else threadpool_limits(1, user_api="blas"))
    try:
        yield
    finally:
        with _LOCK:
            limit = _limits.pop()
            if not _limits:
                limit.restore_original_limits()
