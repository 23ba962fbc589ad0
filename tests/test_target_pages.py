"""The pages of the targets say what the tables say."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_pages_are_those_of_the_tables() -> None:
    spec = importlib.util.spec_from_file_location("tools_targets", ROOT / "tools" / "targets.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    stale = [path.name for path, text in module.pages().items() if not path.exists() or path.read_text() != text]
    assert not stale, "run python tools/targets.py"
