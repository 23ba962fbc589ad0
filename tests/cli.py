"""The command line in this process, as tests of it call it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnxq.cli import main
from onnxq.demo.data import load_digits

__all__ = ["Captured", "digits", "document", "run"]

Captured = pytest.CaptureFixture[str]


def digits(folder: Path) -> str:
    """A file of samples for the packaged model."""
    np.savez(folder / "d.npz", image=load_digits().calibration[:24])
    return str(folder / "d.npz")


def run(*args: object) -> int:
    """The exit code."""
    try:
        return main([str(arg) for arg in args])
    except SystemExit as exit_:  # argparse
        assert isinstance(exit_.code, int)
        return exit_.code


def document(capsys: Captured) -> dict[str, Any]:
    """What was printed to stdout: one JSON object and nothing else."""
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    loaded = json.loads(out)
    assert isinstance(loaded, dict)
    return loaded
