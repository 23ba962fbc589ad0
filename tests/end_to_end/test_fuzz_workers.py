"""The workers of ``tools/fuzz_graphs.py``: what is a breach, and what onnxruntime does to a float model on its own."""

from __future__ import annotations

import os
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType

import pytest

from tests.tool import load_tool
from tests.verdict import Verdict

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return load_tool("fuzz_graphs")


def life(connection: Connection) -> None:
    """A worker that does what the seed says; 2 harms it, so that it dies at the next job."""
    harmed = False
    while True:
        _, seed, _, _ = connection.recv()
        if seed == 1 or (harmed and seed != 2):
            os.kill(os.getpid(), signal.SIGSEGV)
        connection.send("ready")
        if seed == 3:
            os.kill(os.getpid(), signal.SIGFPE)
        if seed == 4:
            time.sleep(600)
        harmed = seed == 2
        connection.send(Verdict("untouched", f"{seed}"))


def test_who_ended_the_process(tool: ModuleType) -> None:
    worker = tool.Fuzzer(life)
    try:
        asked = [worker.ask("judge", seed, "qnn", "all", seconds=600) for seed in (0, 1, 3, 0, 2, 0)]
    finally:
        worker.stop()
    assert asked[0] == asked[3] == Verdict("untouched", "0")
    assert asked[1] == tool.NoGraph("SIGSEGV"), "in a new process too, before there was a graph"
    assert asked[2] == Verdict("FAULT", "the process died with exit code -8"), "the graph was there"
    assert asked[5].outcome == "FAULT" and "one before it did harm" in asked[5].text


def test_no_end(tool: ModuleType) -> None:
    worker = tool.Fuzzer(life)
    assert worker.ask("judge", 0, "qnn", "all", seconds=600).outcome == "untouched"
    assert worker.ask("judge", 4, "qnn", "all", seconds=0.5) == Verdict("FAULT", "no end after 0.5 s")
    assert worker.process is None, "a new one takes over"
