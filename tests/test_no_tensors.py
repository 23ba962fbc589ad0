"""Outputs that are sequences: every verb says that they were not compared, and shows no figure where there is none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.cli import Captured, run
from tests.models import build, images, normal

ALONE, BESIDE = "seq(float[1, 4, 8, 8]) s", "seq(float[1, 4, 8, 8]) s, float[1, 4, 8, 8] r"


@pytest.fixture(params=[ALONE, BESIDE], ids=["alone", "beside a tensor"])
def outputs(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The outputs of ``f.onnx``, of which ``q.onnx`` was made with the samples ``x.npy``; all lie in the folder."""
    text = f"(float[1, 3, 8, 8] x) => ({request.param}) {{ c = Conv (x, w) r = Relu (c) s = SequenceConstruct (r) }}"
    onnx.save(build(text.replace("Conv (", "Conv <pads = [1, 1, 1, 1]> ("), w=normal(4, 3, 3, 3)), tmp_path / "f.onnx")
    np.save(tmp_path / "x.npy", np.concatenate([feed["x"] for feed in images(1, 3, 8, 8)]))
    made = ["quantize", tmp_path / "f.onnx", "--data", tmp_path / "x.npy", "-o", tmp_path / "q.onnx"]
    assert run(*made, "--backend", "openvino") == 0
    return str(request.param)


def test_compare(outputs: str, tmp_path: Path, capsys: Captured) -> None:
    capsys.readouterr()
    assert run("compare", tmp_path / "f.onnx", tmp_path / "q.onnx", "--data", tmp_path / "x.npy") == 0
    told = capsys.readouterr().out
    assert "not compared with the float model, being no tensors: 's'" in told
    assert ("SQNR dB  centred" in told.split("most is lost")[0]) == (outputs == BESIDE)


def test_deploy(outputs: str, tmp_path: Path, capsys: Captured) -> None:
    capsys.readouterr()
    assert run("deploy", tmp_path / "q.onnx", "--backend", "openvino", "-o", tmp_path / "d.onnx") == 0
    told = capsys.readouterr().out
    assert "not compared with the model given, being no tensors: 's'" in told
    why = "not compared with the model given: it gives no tensors"
    assert (why if outputs == ALONE else "exact to the model given") in told


def test_verify(outputs: str, tmp_path: Path, capsys: Captured) -> None:
    capsys.readouterr()
    verify = ["verify", tmp_path / "q.onnx", "--backend", "openvino", "--simulation"]
    assert run(*verify, "--data", tmp_path / "x.npy") == 0
    told = capsys.readouterr().out
    assert "give data" not in told
    assert "not compared with onnxruntime, being no tensors: 's'" in told
    assert ("nothing: no output is a tensor" in told) == (outputs == ALONE)
    assert run(*verify) == 0
    assert "nothing: give data (--data)" in capsys.readouterr().out
