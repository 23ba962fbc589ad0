"""Cycles are searched for less often while a command runs, and found all the same."""

from __future__ import annotations

import gc
import weakref

import pytest

from onnxq.cli import main
from onnxq.console.collector import keep_loaded, seldom_collecting


class Node:
    """An object that can be part of a cycle."""

    other: Node


def test_a_command_leaves_the_collector_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    before = gc.get_threshold()
    assert main(["backends"]) == 0
    assert "onnxruntime" in capsys.readouterr().out
    assert (gc.get_threshold(), gc.get_freeze_count(), gc.isenabled()) == (before, 0, True)


def test_cycles_made_meanwhile_are_found() -> None:
    with seldom_collecting():
        keep_loaded()
        assert gc.get_freeze_count() > 0
        node = Node()
        node.other = node
        seen = weakref.ref(node)
        del node
        kept = [[] for _ in range(400_000)]  # type: ignore[var-annotated]
        assert seen() is None and len(kept) == 400_000
    assert gc.get_freeze_count() == 0


def test_an_error_restores_it_too() -> None:
    before = gc.get_threshold()
    with pytest.raises(ValueError, match="x"), seldom_collecting():
        assert gc.get_threshold() != before
        raise ValueError("x")
    assert gc.get_threshold() == before
