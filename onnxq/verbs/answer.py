"""What every verb gives, and how it reads the flags that all of them have."""

from __future__ import annotations

import argparse
from typing import Any

from onnxq.console.progress import Reporter, make_reporter

__all__ = ["Answer", "reporter", "shows"]

Answer = tuple[int, dict[str, Any] | None]
"""The exit code, and the document that ``--json`` prints."""


def reporter(args: argparse.Namespace) -> Reporter:
    """Progress, unless ``--quiet``."""
    return make_reporter(quiet=args.quiet)


def shows(args: argparse.Namespace) -> bool:
    """Whether the summary for people is wanted."""
    return not (args.json or args.quiet)
