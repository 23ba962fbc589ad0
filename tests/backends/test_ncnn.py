"""ncnn: the calibration table, by layers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxq
from onnxq import Options
from onnxq.backend_choice import backend_named
from onnxq.errors import BackendError, OptionError
from onnxq.ort.session import Session
from tests.models import build, constants_of, f32, images, normal
from tests.targets import residual

GOLDEN = """\
conv_param_0 1.0 0.5
pairs_param_0 63.5 0.25
conv 127.0
pairs 1.0
"""


def tiny() -> onnx.ModelProto:
    return build(
        """(float[1, 1, 1, 2] x) => (float[1, 4, 1, 2] y) {
            [conv] a = Conv (x, w1)
            [relu] r = Relu (a)
            [pairs] y = Conv <group = 2> (r, w2)
        }""",
        w1=f32([[[[-127.0]]], [[[254.0]]]]),
        w2=f32([[[[1.0]]], [[[-2.0]]], [[[508.0]]], [[[3.0]]]]),
    )


def test_the_table_of_a_tiny_net(tmp_path: Path) -> None:
    """By hand: 127 over 127 and 254; the larger of each group, 2 and 508; x up to 1; the Relu's output up to 127."""
    feeds = [{"x": f32([[[[-1.0, 0.5]]]])}, {"x": f32([[[[0.25, 0.5]]]])}]
    made = onnxq.quantize(tiny(), feeds, backend="ncnn", output=tmp_path, options=Options(range="minmax"))
    assert [p.name for p in made.files] == ["model_ncnn.onnx", "model_ncnn.table"]
    assert [
        [line.split(" ")[0], *(pytest.approx(float(t), rel=1e-6) for t in line.split(" ")[1:])]
        for line in made.files[1].read_text().splitlines()
    ] == [[line.split(" ")[0], *(float(t) for t in line.split(" ")[1:])] for line in GOLDEN.splitlines()]


def test_the_integers_that_ncnn_makes(tmp_path: Path) -> None:
    """round(x * scale) within 127, as in ncnn's quantize_to_int8, gives the simulated weights."""
    made = onnxq.quantize(residual(), images(1, 3, 16, 16), backend="ncnn", output=tmp_path)
    model = onnx.load(made.files[0])
    stored = constants_of(model)
    lines = [line.split(" ") for line in made.files[1].read_text().splitlines()]
    scales = {key.removesuffix("_param_0"): f32([float(t) for t in rest]) for key, *rest in lines if rest[1:]}
    assert [key for key, *_ in lines[:4]] == [f"{n}_param_0" for n in ("stem", "depthwise", "project", "head")]
    assert [key for key, *_ in lines[4:]] == ["stem", "depthwise", "project", "head"]
    for node in model.graph.node:
        if node.name not in scales:
            continue
        w, scale = stored[node.input[1]].astype(np.float32), scales[node.name]
        scale = scale.reshape(-1, *([1] * (w.ndim - 1)))
        shifted = w * scale
        integers = np.clip(np.copysign(np.floor(np.abs(shifted) + 0.5), shifted), -127, 127)
        np.testing.assert_allclose(integers / scale, w, rtol=1e-6)
        assert np.abs(integers).reshape(len(w), -1).max(axis=1).min() == 127


def test_read_back_it_computes_the_same(tmp_path: Path) -> None:
    feeds = images(1, 3, 16, 16)
    made = onnxq.quantize(residual(), feeds, backend="ncnn", output=tmp_path)
    read = backend_named("ncnn").formats["ncnn"].read
    assert read is not None
    again = read(made.files[0])
    numbers = {site.tensor: again.qparams[site.name] for site in again.plan.sites}
    assert {s.tensor for s in made.plan.sites} == set(numbers)
    for site in made.plan.sites:
        assert numbers[site.tensor] == replace(made.qparams[site.name], spec=numbers[site.tensor].spec)
    first, second = Session(made.rendered(), optimize=False), Session(again.rendered(), optimize=False)
    for sample in feeds:
        np.testing.assert_array_equal(first.run(sample)["y"], second.run(sample)["y"])
    assert again.save(tmp_path / "again.onnx")[1].read_text() == made.files[1].read_text()


def test_the_shortcut_of_a_residual_stays_float() -> None:
    """Only layers quantize what they read: the Add reads the Relu's output as it is."""
    made = onnxq.quantize(residual(), images(1, 3, 16, 16), backend="ncnn")
    site = next(s for s in made.plan.sites if s.tensor == "r")
    assert [edge.node for edge in site.readers] == ["depthwise"] and not site.produced
    nodes = {n.name: n for n in made.rendered().graph}
    assert nodes["shortcut"].inputs[1] is nodes["stem_act"].outputs[0]


def test_fully_connected_weights_are_turned(tmp_path: Path) -> None:
    model = build("(float[1, 8] x) => (float[1, 3] y) { [fc] y = Gemm (x, w) }", w=normal(8, 3))
    made = onnxq.quantize(model, images(1, 8), backend="ncnn", output=tmp_path)
    node = onnx.load(made.files[0]).graph.node[0]
    assert {a.name: a.i for a in node.attribute}["transB"] == 1
    assert len(made.files[1].read_text().splitlines()[0].split(" ")) == 4
    assert "pnnx does not keep" in "\n".join(made.notes)


def test_names_that_a_line_cannot_hold(tmp_path: Path) -> None:
    model = tiny()
    model.graph.node[0].name, model.graph.node[2].name = "a b_param_0", "x" * 400
    made = onnxq.quantize(model, images(1, 1, 1, 2), backend="ncnn", output=tmp_path)
    keys = [line.split(" ")[0] for line in made.files[1].read_text().splitlines()]
    names = [n.name for n in onnx.load(made.files[0]).graph.node]
    assert keys[2:] == [names[0], names[2]] == ["a_b_par_0", "x" * 200]


@pytest.mark.parametrize("name", ["net_param_param_conv", "a_param_", "_param__param_", "net_param", "é" * 300])
def test_no_layer_of_the_table_is_taken_for_weights_or_cut(name: str, tmp_path: Path) -> None:
    model = tiny()
    for node in model.graph.node:
        if node.op_type == "Conv":
            node.name = name  # all alike: those that follow get a number
    made = onnxq.quantize(model, images(1, 1, 1, 2), backend="ncnn", output=tmp_path)
    keys = [line.split(" ")[0] for line in made.files[1].read_text().splitlines()]
    layers = [key for key in keys if "_param_" not in key]
    assert len(keys) == 2 * len(layers) and {f"{layer}_param_0" for layer in layers} == set(keys) - set(layers)
    assert set(layers) <= {node.name for node in onnx.load(made.files[0]).graph.node}
    assert max(len(key.encode()) for key in keys) < 256
    read = backend_named("ncnn").formats["ncnn"].read
    assert read is not None and len(read(made.files[0]).plan.quantized) == len(layers)


def test_no_zero_points() -> None:
    with pytest.raises(OptionError, match="zero point"):
        onnxq.quantize(tiny(), images(1, 1, 1, 2), backend="ncnn", options=Options(symmetric=False))


@pytest.mark.parametrize("text", ["conv 1.0\n", "conv_param_0 1.0\n", "conv zero\n", "a_param_0 1.0\na 1.0\n"])
def test_a_broken_table_is_an_error(text: str, tmp_path: Path) -> None:
    made = onnxq.quantize(tiny(), images(1, 1, 1, 2), backend="ncnn", output=tmp_path)
    made.files[1].write_text(text)
    read = backend_named("ncnn").formats["ncnn"].read
    assert read is not None
    with pytest.raises(BackendError):
        read(made.files[0])


def test_one_scale_of_a_matrix_is_written_for_each_of_its_outputs(tmp_path: Path) -> None:
    model = build("(float[1, 8] x) => (float[1, 4] y) { [fc] y = MatMul (x, w) }", w=normal(8, 4))
    options = Options(placement="all", per_channel=False)
    onnxq.quantize(model, images(1, 8), backend="ncnn", options=options, output=tmp_path / "m.onnx")
    lines = [line.split() for line in (tmp_path / "m.table").read_text().splitlines()]
    (scales,) = [line[1:] for line in lines if line[0].startswith("fc") and len(line) > 2]
    assert len(scales) == 4 and len(set(scales)) == 1
