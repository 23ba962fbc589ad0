"""What a result warns of goes to the log as well, for whoever calls onnxq from Python and looks at no report."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from onnxq.console.records import IN_REPORT
from onnxq.measuring.verification import Verification

__all__ = ["say", "unsaid"]

_log = logging.getLogger("onnxq")
_silent: ContextVar[bool] = ContextVar("_silent", default=False)


def say(checked: Verification | None, *, prefix: str = "") -> None:
    """Log each warning of a result.

    Args:
        checked: what running it showed.
        prefix: of each line, where there are several results.
    """
    if checked is None or _silent.get():
        return
    for text in checked.warnings:
        _log.warning("%s%s", prefix, text, extra={IN_REPORT: True})


@contextmanager
def unsaid() -> Iterator[None]:
    """Results made meanwhile are tries, of which only one will be kept: nothing is logged of them."""
    token = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(token)
