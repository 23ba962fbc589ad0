"""PPL W8A16: the JSON table."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxq
from onnxq import Options
from onnxq.backend_choice import backend_named
from onnxq.errors import BackendError
from onnxq.ort.session import Session
from tests.models import build, constants_of, f32, images
from tests.targets import residual

GOLDEN = """\
{
 "ppl": {
  "x": {
   "step": 1.144426641985774e-05,
   "zero_point": 21845,
   "min": -0.25,
   "max": 0.5,
   "bit": 16,
   "type": "biased"
  },
  "r": {
   "step": 6.103608757257462e-05,
   "zero_point": 0,
   "min": 0.0,
   "max": 4.0,
   "bit": 16,
   "type": "biased"
  },
  "w": {
   "step": 0.03921568766236305,
   "zero_point": 51,
   "min": -2.0,
   "max": 8.0,
   "bit": 8,
   "type": "biased"
  }
 }
}
"""


def tiny() -> onnx.ModelProto:
    text = "(float[1, 1, 1, 2] x) => (float[1, 2, 1, 2] r) { [conv] a = Conv (x, w)\n [relu] r = Relu (a) }"
    return build(text, w=f32([[[[-2.0]]], [[[8.0]]]]))


def test_the_table_of_a_tiny_net(tmp_path: Path) -> None:
    """Numbers by hand: x in -1/4..1/2, the Relu's output up to 4 (8 times 1/2), the weight -2..8."""
    feeds = [{"x": f32([[[[-0.25, 0.5]]]])}, {"x": f32([[[[0.25, 0.5]]]])}]
    made = onnxq.quantize(tiny(), feeds, backend="ppl", output=tmp_path, options=Options(range="minmax"))
    assert [p.name for p in made.files] == ["model_ppl.onnx", "model_ppl.json"]
    assert made.files[1].read_text() == GOLDEN


def test_the_schema(tmp_path: Path) -> None:
    made = onnxq.quantize(residual(), images(1, 3, 16, 16), backend="ppl", output=tmp_path)
    document = json.loads(made.files[1].read_text())
    assert list(document) == ["ppl"]
    names = {v.name for v in onnx.load(made.files[0]).graph.input}
    model = onnx.load(made.files[0])
    names |= {n for node in model.graph.node for n in node.output} | {t.name for t in model.graph.initializer}
    stored = constants_of(model)
    for name, entry in document["ppl"].items():
        assert name in names
        assert list(entry) == ["step", "zero_point", "min", "max", "bit", "type"]
        assert entry["type"] == "biased" and entry["bit"] == (8 if name in stored else 16)
        levels = 2 ** entry["bit"] - 1
        assert 0 <= entry["zero_point"] <= levels and entry["step"] > 0
        assert entry["min"] == pytest.approx(-entry["zero_point"] * entry["step"], rel=1e-6)
        assert entry["max"] == pytest.approx((levels - entry["zero_point"]) * entry["step"], rel=1e-6)
        if name in stored:
            assert entry["min"] <= stored[name].min() and stored[name].max() <= entry["max"], "weights are clipped"
    assert {"w1", "w2", "w3", "w4", "x", "r", "e", "c", "t", "p", "g", "f", "y"} == set(document["ppl"])
    assert "QuantizeLinear" not in {n.op_type for n in model.graph.node}


@pytest.mark.parametrize("options", [Options(), Options(symmetric=True), Options(per_channel=True)])
def test_read_back_it_computes_the_same(options: Options, tmp_path: Path) -> None:
    feeds = images(1, 3, 16, 16)
    made = onnxq.quantize(residual(), feeds, backend="ppl", output=tmp_path, options=options)
    read = backend_named("ppl").formats["ppl"].read
    assert read is not None
    again = read(made.files[0])
    first, second = Session(made.rendered(), optimize=False), Session(again.rendered(), optimize=False)
    for sample in feeds:
        np.testing.assert_array_equal(first.run(sample)["y"], second.run(sample)["y"])
    assert json.loads(again.save(tmp_path / "again.onnx")[1].read_text()) == json.loads(made.files[1].read_text())


@pytest.mark.parametrize("text", ["no json", "[]", '{"ppl": {"x": {"step": 1.0}}}', '{"ppl": []}'])
def test_a_broken_table_is_an_error(text: str, tmp_path: Path) -> None:
    made = onnxq.quantize(residual(), images(1, 3, 16, 16), backend="ppl", output=tmp_path)
    made.files[1].write_text(text)
    read = backend_named("ppl").formats["ppl"].read
    assert read is not None
    with pytest.raises(BackendError):
        read(made.files[0])
    made.files[1].unlink()
    with pytest.raises(BackendError, match="cannot be read"):
        read(made.files[0])
