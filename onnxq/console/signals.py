"""Signals that end a program: what is under way is cleared away first, as after Ctrl-C."""

from __future__ import annotations

import signal
import threading
from types import FrameType

__all__ = ["Terminated", "heed_signals", "ignore_signals"]

_NAMES = ("SIGTERM", "SIGHUP")
"""Sent by ``kill``, ``timeout``, a scheduler or a container that ends, by a terminal that closes; Windows has one."""
_NUMBERS = tuple(signal.Signals[name] for name in _NAMES if name in signal.Signals.__members__)


class Terminated(KeyboardInterrupt):
    """The process was told to end by another signal than that of Ctrl-C.

    Args:
        number: of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    @property
    def code(self) -> int:
        """The exit code, see :class:`onnxq.console.exit_codes.ExitCode`: what a shell makes of such an end."""
        return 128 + self.number


def heed_signals() -> None:
    """Raise `Terminated` at such a signal from now on, where nothing else is to happen then (``nohup`` ignores one)."""
    if threading.current_thread() is not threading.main_thread():
        return
    for number in _NUMBERS:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _terminate)


def ignore_signals() -> None:
    """Pay no heed to any of them, and to Ctrl-C, from now on: the process ends already."""
    if threading.current_thread() is not threading.main_thread():
        return
    for number in (signal.SIGINT, *_NUMBERS):
        signal.signal(number, signal.SIG_IGN)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated(number)
