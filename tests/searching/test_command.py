"""The search on the command line: its flags, what it prints and writes, and being killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from onnxq.cli import main
from tests.models import images

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def arguments(model: Path) -> list[str]:
    """Of a run whose metric is that of `decibels`; ``kill`` beside the metric's file says at which call to die."""
    folder = model.parent
    np.savez(folder / "d.npz", x=np.stack([feed["x"] for feed in images(2, 8, 6, 6, samples=8)]))
    (folder / "score.py").write_text(
        """
import os, pathlib, signal
from tests.searching.hunting import decibels
HERE = pathlib.Path(__file__).parent

def score(run):
    kill = HERE / "kill"
    if kill.exists():
        left = int(kill.read_text()) - 1
        kill.write_text(str(left))
        if not left:
            kill.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
    return decibels(HERE / "m.onnx")(run)
"""
    )
    metric = ["--metric", str(folder / "score.py") + ":score"]
    return ["quantize", str(model), "--data", str(folder / "d.npz"), "--placement", "all", *metric]


def test_exit_codes_and_the_table(arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["-o", str(tmp_path / "q.onnx")]
    assert main([*arguments, *out, "--max-drop", "80"]) == 0
    shown = capsys.readouterr()
    for word in ("float", "tried", "drop", "speed", "default", "meets"):
        assert word in shown.out
    assert "1. default: metric" in shown.err
    assert main([*arguments, *out, "--max-drop", "1"]) == 4
    shown = capsys.readouterr()
    assert "TARGET NOT MET" in shown.out
    assert (tmp_path / "q.onnx").exists()
    assert main([*arguments, *out, "--max-drop", "1", "--max-minutes", "0", "--json"]) == 4
    document = json.loads(capsys.readouterr().out)
    assert (document["met"], document["stopped"], len(document["attempts"])) == (False, True, 1)
    assert document["report"]["quantized_nodes"] == 3


def test_flags_of_the_search_need_a_target(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "-o", str(tmp_path / "q.onnx")]) == 2
    for flag, value in (("--max-drop", "-1"), ("--max-drop", "nan"), ("--max-minutes", "-1")):
        assert main([*arguments, "-o", str(tmp_path / "q.onnx"), "--max-drop", "1", flag, value]) == 2
        assert f"{flag}: {float(value)} is not a number of at least 0" in capsys.readouterr().err


def test_a_metric_mended_after_its_first_call_is_measured(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    score = tmp_path / "mine.py"
    score.write_text("def f(run):\n    return run(None)['logit']\n")
    command = [*arguments[:-1], f"{score}:f", "-o", str(tmp_path / "q.onnx"), "--max-drop", "1", "-q"]
    assert main(command) == 1
    assert "float model: it raised" in capsys.readouterr().err
    score.write_text("def f(run):\n    return 1.0\n")
    assert main(command) == 0
    assert not (tmp_path / "q.onnx.search").exists()


def test_a_folder_takes_the_result(arguments: list[str], tmp_path: Path) -> None:
    assert main([*arguments, "-o", str(tmp_path / "out"), "--max-drop", "100", "-q"]) == 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["m_onnxruntime.onnx"]


def test_a_config_file_may_hold_them(arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "c.toml"
    config.write_text(f'max-drop = 80\nmetric = "{arguments[-1]}"\n')
    assert main([*arguments[:-2], "-o", str(tmp_path / "q.onnx"), "--config", str(config), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["max_drop"] == 80
    config.write_text('max-drop = "80"\n')
    assert main([*arguments, "-o", str(tmp_path / "q.onnx"), "--config", str(config)]) == 1


def test_killed_half_way_and_started_again_it_gives_the_same_bytes(arguments: list[str], tmp_path: Path) -> None:
    """In processes of their own, with time really measured; killed in the metric of the third model."""

    def run(name: str) -> int:
        command = [sys.executable, "-m", "onnxq", *arguments, "-q", "-o", str(tmp_path / name / "q.onnx")]
        (tmp_path / name).mkdir(exist_ok=True)
        return subprocess.run([*command, "--max-drop", "61", "--algorithm", "bias_correction"], check=False).returncode

    whole = run("a")
    (tmp_path / "kill").write_text("4")
    assert run("b") == -signal.SIGKILL
    assert not (tmp_path / "b" / "q.onnx").exists()
    state = json.loads((tmp_path / "b" / "q.onnx.search" / "state.json").read_text())
    assert len({attempt["digest"] for attempt in state["attempts"]}) == 2
    assert run("b") == whole
    assert (tmp_path / "a" / "q.onnx").read_bytes() == (tmp_path / "b" / "q.onnx").read_bytes()
