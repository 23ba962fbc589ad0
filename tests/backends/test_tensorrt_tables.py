"""Tables for TensorRT up to version 10 beside a float model: calibration cache and dynamic ranges."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxq.backends import tensorrt
from onnxq.errors import BackendError
from onnxq.graph.files.save import to_proto
from tests.backends.test_tensorrt import detector, reasons, written
from tests.contract import infer, sqnr
from tests.models import constants_of, images
from tests.planning.test_planner import conv_relu, residual


def rewritten_cache(path: Path, text: str) -> None:
    path.with_suffix(".cache").write_text(text)


def test_a_calibration_cache_holds_a_line_for_each_quantized_tensor(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    q = written(residual(), images(1, 16, 8, 8), path, format="calibration-cache")
    lines = path.with_suffix(".cache").read_bytes().decode().split("\n")
    assert lines[0] == "TRT-100300-EntropyCalibration2" and lines[-1] == ""
    want = {s.tensor: float(q.qparams[s.name].scale) for s in q.plan.sites if s.role == "activation"}
    got = {name: struct.unpack(">f", bytes.fromhex(code))[0] for name, code in (x.split(": ") for x in lines[1:-1])}
    assert got == want and set(got) == {"x", "r", "t", "p"}
    model = onnx.load(path)
    assert not any("Quantize" in n.op_type for n in model.graph.node)


def test_tensorrt_finds_the_same_integers_in_the_weights_beside_a_cache(tmp_path: Path) -> None:
    model, feeds = residual(), images(1, 16, 8, 8)
    written(model, feeds, tmp_path / "q.onnx")
    written(model, feeds, tmp_path / "m.onnx", format="calibration-cache")
    chosen, beside = constants_of(onnx.load(tmp_path / "q.onnx")), constants_of(onnx.load(tmp_path / "m.onnx"))
    for name in ("w1", "w2", "w3"):
        scale = np.abs(beside[name]).max(axis=(1, 2, 3), keepdims=True) / 127
        assert np.array_equal(np.rint(beside[name] / scale), chosen[f"{name}_quantized"])


def test_the_header_of_tensorrt_8_can_be_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    written(conv_relu(), images(1, 16, 8, 8), path, format="calibration-cache-8")
    assert path.with_suffix(".cache").read_text().startswith("TRT-8601-EntropyCalibration2\n")


@pytest.mark.parametrize("name", ["calibration-cache", "dynamic-range"])
def test_what_was_written_reads_back_and_computes_the_same(tmp_path: Path, name: str) -> None:
    path, feeds = tmp_path / "m.onnx", images(1, 3, 16, 16)
    q = written(detector(), feeds, path, format=name)
    read = tensorrt.BACKEND.formats[name].read
    assert read is not None
    again = read(path)
    assert again.plan.quantized.keys() == q.plan.quantized.keys()
    assert {s.name for s in again.plan.sites} == {s.name for s in q.plan.sites}
    before, after = (infer(to_proto(m.rendered()), feeds, optimize=False)["y"] for m in (q, again))
    assert sqnr(before, after) > 100


def test_a_cache_of_tensorrt_itself_is_imported(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(residual(), path)
    rewritten_cache(
        path,
        "TRT-8601-MinMaxCalibration\nx: 3d000000\n(Unnamed Layer* 3) [Constant]_output: 3c000000\na: 3d800000\n"
        "r: 3d400000\nc: 3d800000\ns: 3d800000\nt: 7f800000\ny: 3e000000\n",
    )
    read = tensorrt.BACKEND.formats["calibration-cache"].read
    assert read is not None
    q = read(path)
    scales = {s.tensor: float(q.qparams[s.name].scale) for s in q.plan.sites if s.role == "activation"}
    assert scales == {"x": 2.0**-5, "r": 0.75 * 2.0**-4}
    assert "no scale of tensor 't'" in reasons(q.plan)["MaxPool"]
    assert {q.plan.quantized.get(n) for n in ("Conv", "Conv_1", "Add")} == {"Conv", "Add"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x: 3d000000\n", "not a calibration cache"),
        ("TRT-8601-EntropyCalibration2\nx = 3\n", "line 2"),
        ("TRT-8601-EntropyCalibration2\nother: 3d000000\n", "none of its tensors is in the model"),
        ("TRT-8601-EntropyCalibration2\nx: bd000000\n", "negative"),
    ],
)
def test_a_wrong_cache_is_said_to_be_wrong(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(residual(), path)
    rewritten_cache(path, text)
    read = tensorrt.BACKEND.formats["calibration-cache"].read
    assert read is not None
    with pytest.raises(BackendError, match=says):
        read(path)
    path.with_suffix(".cache").unlink()
    with pytest.raises(BackendError, match="cannot be read"):
        read(path)


def test_dynamic_ranges_are_largest_magnitudes_under_both_names(tmp_path: Path) -> None:
    path, feeds = tmp_path / "m.onnx", images(1, 16, 8, 8)
    written(conv_relu(), feeds, path, format="dynamic-range", range="minmax")
    sidecar = path.with_suffix(".json")
    document = json.loads(sidecar.read_text())
    table = document["tensorrt"]["blob_range"]
    assert table == document["act_quant_info"]
    assert table["x"] == pytest.approx(max(np.abs(f["x"]).max() for f in feeds), rel=1e-6)
    read = tensorrt.BACKEND.formats["dynamic-range"].read
    assert read is not None
    for key in document:
        sidecar.write_text(json.dumps({key: document[key]}))
        assert {s.tensor for s in read(path).plan.sites if s.role == "activation"} == set(table)
    sidecar.write_text("[]")
    with pytest.raises(BackendError, match="not a table"):
        read(path)
