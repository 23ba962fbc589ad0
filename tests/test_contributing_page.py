"""docs/contributing.md names files that exist, and parts of a target's table that it has."""

from __future__ import annotations

import re
from dataclasses import fields

from onnxq import Backend
from tests.test_docs import ROOT

PAGE = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")


def test_files_exist() -> None:
    named = {name for name in re.findall(r"`([\w/.]+)`", PAGE) if "/" in name or name.endswith(".py")}
    assert len(named) > 30
    roots = (ROOT, ROOT / "onnxq", ROOT / "onnxq" / "graph" / "passes")
    missing = {
        name for name in named if not re.search("TARGET|NAME", name) and not any((r / name).exists() for r in roots)
    }
    assert not missing


def test_parts_of_a_table_exist() -> None:
    named = set(re.findall(r"`Backend\.(\w+)`", PAGE))
    assert len(named) > 3 and named <= {field.name for field in fields(Backend)}
