"""stdout and stderr where they are closed, full, or were never there."""

from __future__ import annotations

import os
import sys

from onnxq.errors import OutputError

__all__ = ["close_stdout", "give_streams", "stdout_error"]

_WRITERS = ("onnxq.cli", "onnxq.console.terminal", "json")
"""Modules that write to stdout, and to no file."""


def give_streams() -> None:
    """Have what is written go nowhere where there is no stdout or stderr; called before any other file is opened.

    A file opened first would have the number of the one that is closed, and get what libraries written in C print.
    """
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, lives as long as the process
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def stdout_error(error: BaseException) -> OutputError | None:
    """The error to tell of where stdout took no more; what is left of it goes nowhere then.

    Args:
        error: what was raised; the last of its frames tells what was written.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if not isinstance(error, OSError) or trace is None or trace.tb_frame.f_globals.get("__name__") not in _WRITERS:
        return None
    close_stdout()
    return OutputError(f"cannot be written: {error.strerror or error}", where="stdout")


def close_stdout() -> None:
    """Have what is left of stdout go nowhere, so that closing it is quiet."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
