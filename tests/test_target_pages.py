"""The pages of the targets say what the tables say."""

from __future__ import annotations

from tests.tool import load_tool


def test_pages_are_those_of_the_tables() -> None:
    stale = [
        path.name
        for path, text in load_tool("targets").pages().items()
        if not path.exists() or path.read_text() != text
    ]
    assert not stale, "run python tools/targets.py"
