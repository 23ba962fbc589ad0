"""Docstrings on pages."""

from __future__ import annotations

import re

__all__ = ["markdown"]


def markdown(docstring: str) -> str:
    """A docstring as Markdown: its roles and its double backticks are those of reStructuredText."""
    return re.sub(r"(?::\w+:)?(`+)([^`]+)\1", lambda m: f"`{m[2].removeprefix('~')}`", docstring)
