"""`onnxq verify --layers`: every layer computed from equal integers, so that differences do not add up."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import onnxq
from onnxq import Options, plugins
from onnxq.cli import main
from onnxq.errors import OptionError, VerificationError
from onnxq.measuring.layerwise import compare_layers
from onnxq.ort.session import Session
from onnxq.qparams import dequantize
from onnxq.render.cuts import find_cuts, showing, taken_apart
from onnxq.runtimes.child import examine
from onnxq.runtimes.onnxruntime import RUNTIME
from onnxq.runtimes.rknn import RUNTIME as RKNN
from onnxq.runtimes.runtime import WORKERS, Runtime
from tests.models import build, f32, feeds_for, normal
from tests.targets import branches, residual

ALL = Options(placement="all")

OFF = f"""
import sys
sys.path.insert(0, {str(WORKERS)!r})
import onnxruntime
from common import serve

def run(request):
    session = onnxruntime.InferenceSession(str(request.model), providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    for index, feeds in enumerate(request.feeds()):
        found = dict(zip(names, session.run(None, feeds)))
        codes = found[request.options["name"]]
        codes.ravel()[:4] += request.options["by"]
        if request.options.get("change"):
            found[request.options["name"]] = codes[..., :1] if request.options["change"] == "cut" else []
        request.write(index, [found[n] for n in names])
    return {{"outputs": names}}

sys.exit(serve(lambda: "1", run))
"""


@pytest.fixture
def model() -> ir.Model:
    return onnxq.quantize(residual(), feeds_for(residual()), options=ALL).qdq()


@pytest.mark.parametrize("floats", [False, True])
def test_the_parts_compute_what_the_whole_computes(model: ir.Model, floats: bool) -> None:
    cuts = find_cuts(model)
    assert {cut.tensor for cut in cuts} == {"x", "r", "e", "c", "t", "p", "g", "f"}
    (sample,) = feeds_for(residual(), samples=1)
    whole = Session(showing(model, cuts), optimize=False).run(sample)
    parts = Session(taken_apart(model, cuts, {**sample, **whole}, floats=floats), optimize=False)
    fed = {cut.given: dequantize(whole[cut.codes], cut.numbers) if floats else whole[cut.codes] for cut in cuts}
    got = parts.run({**sample, **fed})
    assert got.keys() == whole.keys()
    for name, array in whole.items():
        np.testing.assert_array_equal(got[name], array)


def test_no_part_inherits_a_difference(model: ir.Model) -> None:
    cuts = find_cuts(model)
    (sample,) = feeds_for(residual(), samples=1)
    whole = Session(showing(model, cuts), optimize=False).run(sample)
    parts = Session(taken_apart(model, cuts, {**sample, **whole}), optimize=False)
    given = {cut.given: whole[cut.codes] for cut in cuts}
    first = cuts[0]
    got = parts.run({**sample, **given, first.given: 255 - given[first.given]})
    changed = [cut.tensor for cut in cuts if not np.array_equal(got[cut.codes], whole[cut.codes])]
    assert 0 < len(changed) < len(cuts) - 1  # the layers that read it, none of those behind


def _off(tmp_path: Path, **options: Any) -> Runtime:
    """onnxruntime with the first four integers of a tensor moved."""
    (tmp_path / "run_off.py").write_text(OFF)

    class Off(Runtime):
        worker = tmp_path / "run_off.py"

    return Off("off", "a runtime that is off", ("off",), options=options)


def test_a_difference_is_found_where_it_is_made(model: ir.Model, tmp_path: Path) -> None:
    cut = find_cuts(model)[2]
    runtime = _off(tmp_path, name=cut.codes, by=3)
    found = compare_layers(model, runtime, feeds_for(residual(), samples=2), timeout=600)
    (layer,) = (one for one in found if one.differing)
    assert (layer.tensor, layer.layer) == (cut.tensor, cut.layer)
    assert (layer.differing, layer.steps) == (8, 3)  # of two samples
    assert 0 < layer.sqnr < 60
    assert {one.steps for one in found if one is not layer} <= {0}


def test_onnxruntimes_integer_kernels_agree_in_every_layer(tmp_path: Path) -> None:
    onnxq.quantize(branches(), feeds_for(branches()), output=tmp_path, options=ALL)
    found = onnxq.verify(tmp_path, feeds_for(branches()), backend="onnxruntime", layers=True)
    assert len(found.layers) == 7
    assert max(layer.steps for layer in found.layers) <= 1
    assert sum(layer.differing for layer in found.layers) <= 0.001 * sum(layer.values for layer in found.layers)
    json.dumps(found.to_dict(), allow_nan=False)


def test_a_runtime_that_does_not_read_codes_gets_floats(model: ir.Model) -> None:
    assert not RKNN.reads_codes
    found = compare_layers(model, replace(RUNTIME, reads_codes=False), feeds_for(residual(), samples=2), timeout=600)
    assert len(found) == len(find_cuts(model))
    assert max(layer.steps for layer in found) <= 1


def test_free_dimensions_and_samples_of_several_sizes() -> None:
    source = build("(float[N, 8, 6, 6] x) => (float[N, 4, 6, 6] y) { y = Conv (x, w) }", w=normal(4, 8, 1, 1))
    feeds = [{"x": normal(n, 8, 6, 6, seed=n)} for n in (2, 3)]
    found = compare_layers(onnxq.quantize(source, feeds, options=ALL).qdq(), RUNTIME, feeds, timeout=600)
    assert {layer.tensor: layer.values for layer in found} == {"x": 2 * 8 * 36, "y": 2 * 4 * 36}


def test_tensors_that_no_data_goes_into_are_left_out() -> None:
    """Runtimes compute them in advance: RKNN-Toolkit2 drops them from the outputs, and all behind have other places."""
    model = build(
        """(float[N, 4] x) => (float[N, 4] y) {
            shape = Shape (x)
            filled = Expand (one, shape)
            fq = QuantizeLinear (filled, scale, zero)
            f = DequantizeLinear (fq, scale, zero)
            twice = Add (f, f)
            tq = QuantizeLinear (twice, scale, zero)
            t = DequantizeLinear (tq, scale, zero)
            xq = QuantizeLinear (x, scale, zero)
            d = DequantizeLinear (xq, scale, zero)
            s = Add (d, t)
            sq = QuantizeLinear (s, scale, zero)
            y = DequantizeLinear (sq, scale, zero)
        }""",
        one=f32([0.5]),
        scale=f32(0.1),
        zero=np.uint8(128),
    )
    assert [cut.codes for cut in find_cuts(ir.from_proto(model))] == ["xq", "sq"]


@pytest.mark.parametrize(("change", "why"), [("cut", "integers of shape"), ("drop", "no integers")])
def test_a_runtime_that_gives_other_tensors(model: ir.Model, tmp_path: Path, change: str, why: str) -> None:
    cut = find_cuts(model)[2]
    runtime = _off(tmp_path, name=cut.codes, by=0, change=change)
    with pytest.raises(VerificationError, match=f"a runtime that is off gives {why}.*'{cut.tensor}'"):
        compare_layers(model, runtime, feeds_for(residual(), samples=1), timeout=600)


def test_what_was_measured_is_told_where_the_layers_take_too_long(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    onnxq.quantize(residual(), feeds_for(residual()), output=tmp_path / "q.onnx", options=ALL)
    np.savez(tmp_path / "d.npz", x=np.stack([f["x"] for f in feeds_for(residual())]))
    sleeping = tmp_path / "run_off.py"
    sleeping.write_text("import time\ntime.sleep(600)")

    class Off(Runtime):
        worker = sleeping

    def slow(_: Runtime, *args: Any, timeout: float, **rest: Any) -> Any:
        return examine(Off("off", "a slow runtime", ("off",)), *args, timeout=0.2)

    monkeypatch.setattr("onnxq.measuring.layerwise.examine", slow)
    command = ["verify", str(tmp_path / "q.onnx"), "--data", str(tmp_path / "d.npz"), "--layers"]
    assert main(command) == 3
    out = " ".join(capsys.readouterr().out.split())
    assert "agreement y: " in out and "layers not compared: a slow runtime took more than 0.2 s" in out
    assert main([*command, "--json"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert found["layers"] == [] and "took more than" in found["layers_missing"] and found["outputs"]


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    q = onnxq.quantize(residual(), feeds_for(residual()), output=tmp_path / "q.onnx", options=ALL)
    np.savez(tmp_path / "d.npz", x=np.stack([f["x"] for f in feeds_for(residual())]))
    command = ["verify", str(tmp_path / "q.onnx"), "--data", str(tmp_path / "d.npz"), "--layers"]
    assert main(command) == 0
    assert "each layer from equal ones" in " ".join(capsys.readouterr().out.split())
    cut = find_cuts(q.qdq())[2]
    runtime = _off(tmp_path, name=cut.codes, by=2)
    monkeypatch.setattr("onnxq.measuring.layerwise.examine", lambda _, *args, **rest: examine(runtime, *args, **rest))
    assert main(command) == 3
    assert f"{cut.tensor}: " in capsys.readouterr().out
    assert main([*command, "--max-steps", "2"]) == 0
    find = plugins.find
    monkeypatch.setattr(
        plugins, "find", lambda group, name: replace(RUNTIME, steps=2) if "runtimes" in group else find(group, name)
    )
    assert main(command) == 0, "so much is known of the runtime"
    assert main([*command, "--max-steps", "1"]) == 3


@pytest.mark.parametrize(
    ("backend", "asked", "why"),
    [
        ("onnxruntime", {"simulation": True, "data": True}, "is not asked"),
        ("onnxruntime", {}, "needs data"),
        ("tensorrt", {"data": True}, "only compiles"),
        ("academic", {"data": True}, "cannot be installed"),
    ],
)
def test_what_cannot_be_compared_is_said_first(tmp_path: Path, backend: str, asked: dict[str, Any], why: str) -> None:
    onnxq.quantize(residual(), feeds_for(residual()), output=tmp_path, backend=backend)
    data = feeds_for(residual()) if asked.pop("data", False) else None
    with pytest.raises(OptionError, match=why):
        onnxq.verify(tmp_path, data, backend=backend, layers=True, **asked)


def test_integer_operators_are_no_quantizers_to_split_at(tmp_path: Path) -> None:
    options = Options(placement="all", format="qoperator")
    onnxq.quantize(residual(), feeds_for(residual()), output=tmp_path / "q.onnx", options=options)
    with pytest.raises(OptionError, match="inside of its operators, as of QLinearConv"):
        onnxq.verify(tmp_path / "q.onnx", feeds_for(residual()), layers=True)


def test_a_float_model_has_no_layers_to_compare(tmp_path: Path) -> None:
    source = build("(float[1, 4] x) => (float[1, 4] y) { y = Relu (x) }")
    with pytest.raises(OptionError, match="no quantizers between its layers to split it at: it is float"):
        compare_layers(ir.from_proto(source), RUNTIME, [{"x": normal(1, 4)}], timeout=600)
