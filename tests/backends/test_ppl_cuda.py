"""PPL.NN on CUDA: PPQ's JSON and MQBench's text."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxq
from onnxq import Options
from onnxq.backend_choice import backend_named
from onnxq.errors import BackendError, OptionError
from onnxq.ort.session import Session
from tests.models import build, f32, images
from tests.targets import branches, residual

KEYS = ["bit_width", "per_channel", "quant_flag", "sym", "scale", "zero_point", "tensor_min", "tensor_max"]
KEYS += ["q_min", "q_max", "hash", "dominator"]


def tiny() -> onnx.ModelProto:
    text = "(float[1, 1, 1, 2] x) => (float[1, 2, 1, 2] r) { [conv] a = Conv (x, w, b)\n [relu] r = Relu (a) }"
    return build(text, w=f32([[[[-127.0]]], [[[254.0]]]]), b=f32([0.0, 0.0]))


def feeds() -> list[dict[str, np.ndarray]]:
    return [{"x": f32([[[[-1.0, 0.5]]]])}, {"x": f32([[[[0.25, 0.5]]]])}]


def test_the_table_of_a_tiny_net(tmp_path: Path) -> None:
    """Numbers by hand: x up to 1, the Relu's output up to 127, weights with 1 and 2 a step."""
    made = onnxq.quantize(tiny(), feeds(), backend="ppl_cuda", output=tmp_path, options=Options(range="minmax"))
    assert [p.name for p in made.files] == ["model_ppl_cuda.onnx", "model_ppl_cuda.json"]
    document = json.loads(made.files[1].read_text())
    third = float(np.float32(1 / 127))
    common = {"bit_width": 8, "quant_flag": True, "sym": True, "q_min": -128, "q_max": 127}
    assert document["op_info"] == {"conv": {"data_type": "INT8"}, "relu": {"data_type": "INT8"}}
    info = document["quant_info"]
    assert list(info) == ["x", "r", "w"], "no entry for the bias, none between Conv and Relu"
    assert list(info["x"]) == KEYS
    assert info["x"] == {
        **common,
        "per_channel": False,
        "scale": third,
        "zero_point": 0,
        "tensor_min": float(np.float32(-128 * third)),
        "tensor_max": 1.0,
        "hash": 1,
        "dominator": 1,
    }
    assert (info["r"]["scale"], info["r"]["tensor_min"], info["r"]["tensor_max"]) == (1.0, -128.0, 127.0)
    assert info["w"] == {
        **common,
        "per_channel": True,
        "scale": [1.0, 2.0],
        "zero_point": [0, 0],
        "tensor_min": [-128.0, -256.0],
        "tensor_max": [127.0, 254.0],
        "hash": 3,
        "dominator": 3,
    }


def test_the_text_of_a_tiny_net(tmp_path: Path) -> None:
    options = Options(range="minmax", format="ranges")
    made = onnxq.quantize(tiny(), feeds(), backend="ppl_cuda", output=tmp_path, options=options)
    assert [p.name for p in made.files] == ["model_ppl_cuda.onnx", "model_ppl_cuda.txt"]
    assert made.files[1].read_text() == f"x: {float(np.float32(1 / 127)) * 128!r}\nr: 128.0\n"


def test_tensors_that_share_a_grid_name_its_owner(tmp_path: Path) -> None:
    model = branches()
    made = onnxq.quantize(model, images(1, 4, 8, 8), backend="ppl_cuda", output=tmp_path)
    info = json.loads(made.files[1].read_text())["quant_info"]
    assert info["c"]["scale"] == info["l"]["scale"] == info["side"]["scale"], "inputs and output of a Concat"
    assert info["l"]["dominator"] == info["side"]["dominator"] == info["c"]["hash"] == info["c"]["dominator"]
    assert len({entry["hash"] for entry in info.values()}) == len(info)


@pytest.mark.parametrize("form", ["ppl", "ranges"])
def test_read_back_it_computes_the_same(form: str, tmp_path: Path) -> None:
    samples = images(1, 3, 16, 16)
    made = onnxq.quantize(residual(), samples, backend="ppl_cuda", output=tmp_path, options=Options(format=form))
    read = backend_named("ppl_cuda").formats[form].read
    assert read is not None
    again = read(made.files[0])
    numbers = {site.tensor: again.qparams[site.name] for site in again.plan.sites}
    for site in made.plan.sites:
        np.testing.assert_array_equal(numbers[site.tensor].scale, made.qparams[site.name].scale)
    first, second = Session(made.rendered(), optimize=False), Session(again.rendered(), optimize=False)
    for sample in samples:
        np.testing.assert_array_equal(first.run(sample)["y"], second.run(sample)["y"])


def test_no_zero_points() -> None:
    with pytest.raises(OptionError, match="zero point"):
        onnxq.quantize(tiny(), feeds(), backend="ppl_cuda", options=Options(symmetric=False))
    override = (("conv", {"symmetric": False}),)
    with pytest.raises(OptionError, match="zero point"):
        onnxq.quantize(tiny(), feeds(), backend="ppl_cuda", options=Options(override=override))


def test_a_broken_table_is_an_error(tmp_path: Path) -> None:
    formats = backend_named("ppl_cuda").formats
    for form, text in (("ppl", '{"quant_info": {"x": {}}, "op_info": {}}'), ("ranges", "x = 3\n")):
        folder = tmp_path / form
        made = onnxq.quantize(tiny(), feeds(), backend="ppl_cuda", output=folder, options=Options(format=form))
        made.files[1].write_text(text)
        read = formats[form].read
        assert read is not None
        with pytest.raises(BackendError, match="is not of the form"):
            read(made.files[0])
