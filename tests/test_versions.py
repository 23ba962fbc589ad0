"""The parts of ``tools/versions.py`` that need no network."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from tests.tool import load_tool

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return load_tool("versions")


def test_the_oldest_release_with_a_wheel(tool: ModuleType) -> None:
    listing = "ERROR: no such version (from versions: 1.9.0, 1.24.0rc1, 1.24.0, 1.24.1, 1.100.0, 2.0.0)\nERROR: none"
    assert tool.oldest(listing, "1.24") == "1.24.0"
    assert tool.oldest(listing, "1.25") == "1.100.0"
    with pytest.raises(SystemExit, match=r"3\.0"):
        tool.oldest(listing, "3.0")
    with pytest.raises(SystemExit, match="nothing"):
        tool.oldest("", "1.0")


def test_the_bounds_are_those_of_the_project(tool: ModuleType) -> None:
    for name in tool.LIBRARIES:
        assert tool.numbers(tool.lower_bound(name)) > (0,)
    with pytest.raises(SystemExit, match="nobody"):
        tool.lower_bound("nobody")


def test_every_part_is_there_and_needs_no_torch(tool: ModuleType) -> None:
    for part in tool.PART:
        path = ROOT / part
        files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        assert files
        for file in files:
            assert "\nimport torch" not in file.read_text(encoding="utf-8"), file


def test_the_page(tool: ModuleType) -> None:
    good = tool.Outcome("3.10.1", "oldest", ("1", "2", "3", "4"), "9 passed", True)
    bad = tool.Outcome("3.13.0", "newest", ("1", "2", "3", "4"), "1 failed", False, ("FAILED a.py::b - c",))
    page = tool.report([good, bad], whole=False)
    assert "| 3.10.1 | oldest | 1 | 2 | 3 | 4 | 9 passed |" in page
    assert "- `FAILED a.py::b - c`" in page
