"""Free sizes that are fixed on the way: by every verb that prepares a model, for targets that take fixed ones alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxq import DataError, ModelError, Options, StatisticsError, calibrate, check, deploy, plan, quantize
from tests.cli import Captured, run
from tests.models import build, images, normal

FREE = """(float[N, 3, H, W] x) => (float[N, 4, H, W] y) {
    c = Conv <pads = [1, 1, 1, 1]> (x, w)
    r = Relu (c)
    y = Conv <pads = [1, 1, 1, 1]> (r, v)
}"""
FIXED = Options(shapes={"x": (1, 3, 8, 8)})
FEEDS = images(1, 3, 8, 8, samples=8)


def free() -> onnx.ModelProto:
    return build(FREE, w=normal(4, 3, 3, 3), v=normal(4, 4, 3, 3, seed=1))


def sizes(path: Path) -> list[list[str | int]]:
    graph = onnx.load(path).graph
    return [[d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in (*graph.input, *graph.output)]


def test_a_target_of_fixed_sizes(tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_litert")
    model = free()
    with pytest.raises(ModelError, match=r"'x': its sizes \[N,3,H,W\] are free.*--shape x=SIZE0x3xSIZE2xSIZE3"):
        quantize(model, FEEDS, backend="litert", output=tmp_path / "a.onnx")
    quantize(model, FEEDS, backend="litert", output=tmp_path / "a.onnx", options=FIXED)
    assert sizes(tmp_path / "a.onnx") == [[1, 3, 8, 8], [1, 4, 8, 8]]
    assert (tmp_path / "a.tflite").exists()


def test_a_model_with_quantizers(tmp_path: Path) -> None:
    quantize(free(), FEEDS, output=tmp_path / "q.onnx", options=Options(placement="all"))
    assert sizes(tmp_path / "q.onnx") == [["N", 3, "H", "W"], ["N", 4, "H", "W"]]
    deploy(tmp_path / "q.onnx", backend="qnn", output=tmp_path / "d.onnx", options=FIXED)
    assert sizes(tmp_path / "d.onnx") == [[1, 3, 8, 8], [1, 4, 8, 8]]


def test_data_of_other_sizes_is_refused() -> None:
    with pytest.raises(DataError, match=r"sample 0, input 'x': .*1x3x8x8, the model wants 1x3x9x9"):
        quantize(free(), FEEDS, options=Options(shapes="x=1x3x9x9"))


def test_sizes_that_the_model_cannot_have(tmp_path: Path) -> None:
    model = build(
        "(float[N, 3, H, W] x) => (float[N, 5] y) { c = Conv (x, w) \n f = Flatten (c) \n y = Gemm (f, v) }",
        w=normal(4, 3, 3, 3),
        v=normal(144, 5, seed=1),
    )
    cannot = r"Gemm.*144 and 196.*cannot have the sizes asked for \(--shape\): x=1x3x9x9"
    with pytest.raises(ModelError, match=cannot):
        quantize(model, images(1, 3, 9, 9), options=Options(shapes="x=1x3x9x9"))
    quantize(model, FEEDS, output=tmp_path / "q.onnx", options=Options(placement="all"))
    with pytest.raises(ModelError, match=cannot):
        deploy(tmp_path / "q.onnx", backend="qnn", output=tmp_path / "d.onnx", options=Options(shapes="x=1x3x9x9"))
    assert not (tmp_path / "d.onnx").exists()


def test_statistics_are_of_the_sizes(tmp_path: Path) -> None:
    model = free()
    calibrate(model, FEEDS, output=tmp_path / "free.npz")
    with pytest.raises(StatisticsError, match=r"another model.*--shape"):
        quantize(model, statistics=tmp_path / "free.npz", options=FIXED)
    calibrate(model, FEEDS, output=tmp_path / "fixed.npz", options=FIXED)
    assert quantize(model, statistics=tmp_path / "fixed.npz", options=FIXED).plan.total == 3


def test_plan_and_check_go_by_them() -> None:
    model = free()
    assert plan(model, options=FIXED).total
    found = check(model, backend="qnn", options=FIXED)
    assert not any("free sizes" in finding.what for finding in found)
    found = check(model, backend="qnn")
    assert any("free sizes" in f.what and "--shape x=SIZE0x3xSIZE2xSIZE3" in f.hint for f in found)


def test_weights_alone(tmp_path: Path) -> None:
    model = build("(float[N, 64] x) => (float[N, 64] y) { y = MatMul (x, w) }", w=normal(64, 64))
    onnx.save(model, tmp_path / "m.onnx")
    assert (
        run("quantize", tmp_path / "m.onnx", "-o", tmp_path / "w.onnx", "--algorithm", "weight_only", "--shape", "N=2")
        == 0
    )
    assert sizes(tmp_path / "w.onnx") == [[2, 64], [2, 64]]


def test_the_command_line(tmp_path: Path, capsys: Captured) -> None:
    onnx.save(free(), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=np.concatenate([feeds["x"] for feeds in FEEDS]))
    files = [tmp_path / "m.onnx", "--data", tmp_path / "d.npz", "-o", tmp_path / "q.onnx"]
    assert run("quantize", *files, "--shape", "H=8", "--shape", "W=8", "--shape", "N=1") == 0
    assert sizes(tmp_path / "q.onnx") == [[1, 3, 8, 8], [1, 4, 8, 8]]
    (tmp_path / "c.toml").write_text('[shapes]\nx = "1x3x8x*"\n')
    assert run("quantize", *files, "--config", tmp_path / "c.toml") == 0
    assert sizes(tmp_path / "q.onnx") == [[1, 3, 8, "W"], [1, 4, 8, "W"]]
    capsys.readouterr()
    assert run("quantize", *files, "--shape", "height=8") != 0
    assert "the model has no input and no free size 'height'" in capsys.readouterr().err
