"""What some of several targets refuse: told after what the others gave."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable
from typing import Any

from onnxq.console.terminal import Screen
from onnxq.errors import TargetsError
from onnxq.quantized import Quantized

__all__ = ["refused", "those_made"]


def those_made(make: Callable[[], dict[str, Quantized]]) -> tuple[dict[str, Quantized], TargetsError | None]:
    """The results of the targets that gave one, and what the others refused; None where all gave one."""
    try:
        return make(), None
    except TargetsError as error:
        return error.made, error


def refused(args: argparse.Namespace, error: TargetsError | None) -> dict[str, Any]:
    """Say what was refused, ``--quiet`` or not; what ``--json`` says of it."""
    if error is None:
        return {}
    screen = Screen(sys.stderr)
    screen.error(error)
    if args.verbose and not args.quiet:
        screen.line("".join(traceback.format_exception(error)))
    each = [{"backend": name, **one.report()} for name, one in error.refused.items()]
    return {"error": error.report(), "refused": each}
