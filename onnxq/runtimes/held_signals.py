"""Signals that come while a process is being started: it must be known first, so as to be ended with the run."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["signals_wait"]

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP")
_NUMBERS = tuple(signal.Signals[name] for name in _NAMES if name in signal.Signals.__members__)


@contextmanager
def signals_wait() -> Iterator[None]:
    """Signals that would raise an exception, Ctrl-C among them, raise it when this block has ended.

    For the few lines in which something is made that must be known in order to be cleared away.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    waiting = True
    handlers = {int(number): signal.getsignal(number) for number in _NUMBERS}
    usual = {number: handler for number, handler in handlers.items() if callable(handler)}

    def stand_in(number: int, frame: FrameType | None) -> None:
        if waiting:
            came.append(number)
        else:  # the handlers are being put back
            usual[number](number, frame)

    try:
        for number in usual:
            signal.signal(number, stand_in)
        yield
    finally:
        waiting = False
        for number, handler in usual.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])
