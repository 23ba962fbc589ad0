"""Faults that damaged files showed, each in its smallest form."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxq
from onnxq import BackendError, ModelError, OptionError, Options, StatisticsError, calibrate, plan, quantize
from onnxq.render.tables import read_json
from tests.contract import ALL
from tests.models import build, f32, images, normal


def saved(model: onnx.ModelProto, path: Path) -> Path:
    path.write_bytes(model.SerializeToString())
    return path


def test_constant_with_too_many_bytes(tmp_path: Path) -> None:
    model = build("(float[1, 4, 8, 8] x) => (float[1, 16, 6, 6] y) { y = Conv (x, w) }", w=normal(16, 4, 3, 3))
    model.graph.initializer[0].raw_data += b"abc"
    with pytest.raises(ModelError, match=r"tensor 'w'.*2304 bytes, it has 2307"):
        quantize(saved(model, tmp_path / "m.onnx"), images(1, 4, 8, 8))


def test_external_tensor_without_a_type(tmp_path: Path) -> None:
    model = build("(float[1, 4, 8, 8] x) => (float[1, 4, 6, 6] y) { y = Conv (x, w) }")
    tensor = TensorProto(name="w", dims=[4, 4, 3, 3], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="w.bin")
    model.graph.initializer.append(tensor)
    (tmp_path / "w.bin").write_bytes(bytes(576))
    with pytest.raises(ModelError, match="tensor 'w'"):
        plan(saved(model, tmp_path / "m.onnx"))


def test_name_that_is_no_text(tmp_path: Path) -> None:
    model = build("(float[1, 4] x) => (float[1, 4] y) { [label] y = Relu (x) }")
    broken = model.SerializeToString().replace(b"label", b"l\xffbel")
    (tmp_path / "m.onnx").write_bytes(broken)
    with pytest.raises(ModelError, match="not UTF-8 text"):
        plan(tmp_path / "m.onnx")


def test_attribute_without_a_type() -> None:
    model = build("(float[1, 4] x) => (float[1, 8] y) { y = Concat <axis = 1> (x, x) }")
    model.graph.node[0].attribute[0].ClearField("type")
    with pytest.raises(ModelError, match=r"'axis'.*no type"):
        plan(model)


def test_weights_that_overflow_a_mean() -> None:
    """The mean of a channel is beyond float32; the run ends with a result or an error of onnxq's, not a warning."""
    model = build(
        "(float[1, 4, 8, 8] x) => (float[1, 4, 6, 6] y) { a = Mul (x, f) y = Conv (a, w, b) }",
        f=f32(2e37),
        w=normal(4, 4, 3, 3, scale=1e-36),
        b=normal(4),
    )
    quantize(model, images(1, 4, 8, 8), options=ALL)


@pytest.mark.parametrize("damage", ["cut", "changed", "text"])
def test_broken_state_of_training(tmp_path: Path, damage: str) -> None:
    pytest.importorskip("torch")
    from onnxq import finetune

    model = build(
        "(float[1, 4, 6, 6] x) => (float[1, 4, 4, 4] y) { y = Conv (x, w, b) }", w=normal(4, 4, 3, 3), b=normal(4)
    )
    feeds, state = images(1, 4, 6, 6, samples=4), tmp_path / "state.npz"
    made = quantize(model, feeds, options=ALL)
    finetune(made, feeds, teacher=model, steps=2, batch=2, resume=state)
    content = bytearray(state.read_bytes())
    content = {"cut": content[:-100], "changed": content[:150] + b"abc" + content[153:], "text": bytearray(b"no")}[
        damage
    ]
    state.write_bytes(bytes(content))
    with pytest.raises(OptionError, match="not the state of a training"):
        finetune(made, feeds, teacher=model, steps=2, batch=2, resume=state)


def written(path: Path) -> onnx.ModelProto:
    """A small model with Q and DQ, as onnxq writes it."""
    model = build(
        "(float[1, 4, 8, 8] x) => (float[1, 4, 6, 6] y) { y = Conv (x, w, b) }", w=normal(4, 4, 3, 3), b=normal(4)
    )
    quantize(model, images(1, 4, 8, 8), options=ALL, output=path)
    return onnx.load(path)


@pytest.mark.parametrize(
    ("tensor", "value", "words"),
    [
        ("x_scale", 2e38, "beyond the largest float32"),
        ("x_scale", float("inf"), "not a finite number"),
        ("x_scale", float("nan"), "not a finite number"),
        ("x_scale", -0.1, "not a finite number above 0"),
        ("x_scale", 0.0, "not a finite number above 0"),
        ("w_scale", 3e37, "beyond the largest float32"),
    ],
)
def test_scales_that_are_no_scales(tmp_path: Path, tensor: str, value: float, words: str) -> None:
    model = written(tmp_path / "q.onnx")
    assert onnxq.read(model).plan.sites
    found = next(t for t in model.graph.initializer if t.name == tensor)
    array = numpy_helper.to_array(found).copy()
    array.reshape(-1)[-1] = value
    found.CopyFrom(numpy_helper.from_array(array, tensor))
    with pytest.raises(ModelError, match=words) as error:
        onnxq.read(model)
    assert "Linear" in str(error.value)


@pytest.mark.parametrize(("zero", "words"), [(float("nan"), "not one of 256"), (1000.0, "not one of 256"), (128.0, "")])
def test_zero_point_of_a_fake_quantizer(tmp_path: Path, zero: float, words: str) -> None:
    model = build("(float[1, 4, 8, 8] x) => (float[1, 4, 6, 6] y) { y = Conv (x, w) }", w=normal(4, 4, 3, 3))
    quantize(
        model, images(1, 4, 8, 8), options=Options(placement="all", format="fake-quantize"), output=tmp_path / "q.onnx"
    )
    made = onnx.load(tmp_path / "q.onnx")
    point = next(t for t in made.graph.initializer if t.name == "x_zero_point")
    point.CopyFrom(numpy_helper.from_array(f32(zero).reshape(tuple(point.dims)), point.name))
    if not words:
        assert onnxq.read(made).plan.sites
        return
    with pytest.raises(ModelError, match=words):
        onnxq.read(made)


def test_bias_scale_of_zero_is_read(tmp_path: Path) -> None:
    """Where the scales of data and weight are very small their product is 0, and so is the bias."""
    model = written(tmp_path / "q.onnx")
    scale = next(t for t in model.graph.initializer if t.name == "b_scale")
    scale.CopyFrom(numpy_helper.from_array(np.zeros_like(numpy_helper.to_array(scale)), "b_scale"))
    biases = [site for site in onnxq.read(model).plan.sites if site.role == "bias"]
    assert len(biases) == 1


@pytest.mark.parametrize("kind", [1.0, [1, 2], "one"])
def test_attribute_of_another_type(tmp_path: Path, kind: object) -> None:
    model = written(tmp_path / "q.onnx")
    node = next(n for n in model.graph.node if n.op_type == "DequantizeLinear" and n.attribute)
    node.attribute[0].CopyFrom(helper.make_attribute("axis", kind))
    with pytest.raises(ModelError, match=r"'axis' is of type (FLOAT|INTS|STRING), not INT"):
        onnxq.read(model)


def test_attribute_types_of_a_function_are_looked_at(tmp_path: Path) -> None:
    model = build("(float[1, 4] x) => (float[1, 4] y) { y = Identity (x) }")
    model.graph.node[0].op_type, model.graph.node[0].domain = "Twice", "own"
    inner = helper.make_node("Concat", ["a", "a"], ["c"], axis=0.5)
    model.functions.append(helper.make_function("own", "Twice", ["a"], ["c"], [inner], [helper.make_opsetid("", 17)]))
    model.opset_import.append(helper.make_opsetid("own", 1))
    with pytest.raises(ModelError, match=r"'axis' is of type FLOAT, not INT"):
        plan(model)


def test_numbers_in_a_field_of_another_type() -> None:
    model = build("(float[1, 4] x) => (float[1, 4] y) { y = Add (x, w) }")
    model.graph.initializer.append(TensorProto(name="w", dims=[1], data_type=TensorProto.FLOAT, uint64_data=[3]))
    with pytest.raises(ModelError, match="tensor 'w'"):
        plan(model)


def test_statistics_with_half_a_header(tmp_path: Path) -> None:
    """numpy reads the header of an array with Python's tokenizer, whose errors are its own."""
    import zipfile

    model = build("(float[1, 4, 8, 8] x) => (float[1, 4, 6, 6] y) { y = Conv (x, w) }", w=normal(4, 4, 3, 3))
    path = tmp_path / "s.npz"
    calibrate(model, images(1, 4, 8, 8), output=path)
    with zipfile.ZipFile(path) as file:
        members = {name: file.read(name) for name in file.namelist()}
    cut = members["integers.npy"].replace(b"}", b" ", 1)
    assert cut != members["integers.npy"]
    with zipfile.ZipFile(path, "w") as file:
        for name, content in members.items():
            file.writestr(name, cut if name == "integers.npy" else content)
    with pytest.raises(StatisticsError):
        quantize(model, statistics=path)


def test_quantizer_with_too_few_inputs(tmp_path: Path) -> None:
    model = written(tmp_path / "q.onnx")
    node = next(n for n in model.graph.node if n.op_type == "QuantizeLinear")
    del node.input[1:]
    with pytest.raises(ModelError, match="it has 1 inputs, not 2 to 3"):
        onnxq.read(model)


def test_scales_and_zero_points_of_other_shapes(tmp_path: Path) -> None:
    model = written(tmp_path / "q.onnx")
    for name, shape in (("w_scale", (4, 0, 0)), ("w_zero_point", (3,)), ("x_zero_point", (0,))):
        damaged = onnx.ModelProto.FromString(model.SerializeToString())
        tensor = next(t for t in damaged.graph.initializer if t.name == name)
        tensor.CopyFrom(numpy_helper.from_array(np.zeros(shape, numpy_helper.to_array(tensor).dtype), name))
        with pytest.raises(ModelError, match=r"one for each channel|above 0"):
            onnxq.read(damaged)


def test_stored_numbers_that_are_no_integers(tmp_path: Path) -> None:
    model = written(tmp_path / "q.onnx")
    stored = next(t for t in model.graph.initializer if t.name == "w_quantized")
    stored.CopyFrom(numpy_helper.from_array(np.full((4, 4, 3, 3), np.nan, np.float32), stored.name))
    with pytest.raises(ModelError, match="are not integers"):
        onnxq.read(model)


def test_quantized_nodes_that_nothing_reads(tmp_path: Path) -> None:
    """Reading takes nodes out that give nothing, and what was quantized for them with them."""
    model = written(tmp_path / "q.onnx")
    convolution = next(n for n in model.graph.node if n.op_type == "Conv")
    unread = onnx.NodeProto.FromString(convolution.SerializeToString())
    unread.name, unread.output[0] = "unread", "unread"
    model.graph.node.append(unread)
    back = onnxq.read(model)
    assert "unread" not in back.plan.quantized
    assert not [edge for site in back.plan.sites for edge in site.readers if edge.node == "unread"]
    assert back.rendered().graph.outputs[0].name == "y"


TABLES = [
    ("snpe", '"offset": [', '"offset": [NaN,', "they are not encodings"),
    ("tengine", "\nx 0.", "\nx 1e-300 1e300\nx 0.", "not a whole number: 1e"),
    ("tengine", "\nx 0.", "\nx 1e300 0.", "not a finite number"),
    ("ppl_cuda", '"zero_point": 0', '"zero_point": 0, "scale": 1e300', "not a finite number"),
    ("ppl", '"type": "biased"', '"type": "biased", "step": 1e300', "not a finite number"),
    ("stpu", '"max": ', '"max": 1e300, "min": -1e300, "was": ', "not a finite number"),
    ("ppl_cuda", '"bit_width": 8', '"bit_width": 8.5', "not a number of bits: 8.5"),
    ("ppl_cuda", '"bit_width": 8', '"bit_width": -8', "not a number of bits: -8"),
    ("ppl_cuda", '"zero_point": 0', '"zero_point": 1e999', "not a whole number: inf"),
    ("ppl_cuda", '"zero_point": 0', '"zero_point": null', "not a whole number: None"),
    ("stpu", '"max":', '"alpha": 1, "was":', "that of a bias"),
    ("stpu", "{", "7 #", "not JSON|not a JSON object"),
]


@pytest.mark.parametrize(("backend", "sound", "broken", "words"), TABLES)
def test_tables_with_numbers_that_are_none(tmp_path: Path, backend: str, sound: str, broken: str, words: str) -> None:
    text = "(float[1, 4, 8, 8] x) => (float[1, 4, 6, 6] y) { [c] y = Conv (x, w, b) }"
    model = build(text, w=normal(4, 4, 3, 3), b=normal(4))
    feeds = images(1, 4, 8, 8)
    made = quantize(model, feeds, backend=backend, options=ALL, output=tmp_path / "q.onnx")
    table = next(path for path in made.files if path.suffix != ".onnx")
    content = table.read_text()
    onnxq.verify(tmp_path / "q.onnx", feeds, backend=backend, simulation=True)
    changed = f"\n{content}".replace(sound, broken, 1)
    assert changed != f"\n{content}", content
    table.write_text(changed)
    with pytest.raises(BackendError, match=words):
        onnxq.verify(tmp_path / "q.onnx", feeds, backend=backend, simulation=True)


def test_input_without_an_element_type(tmp_path: Path) -> None:
    text = "(float[1, 4, 8, 8] x) => (float[1, 4, 6, 6] y) { y = Conv (x, w) }"
    feeds = images(1, 4, 8, 8)
    made = quantize(build(text, w=normal(4, 4, 3, 3)), feeds, backend="vitis", options=ALL, output=tmp_path / "q.onnx")
    model = onnx.load(made.files[0])
    model.graph.input[0].type.tensor_type.elem_type = 0
    with pytest.raises(ModelError, match="input 'x': it has no element type"):
        onnxq.verify(saved(model, tmp_path / "q.onnx"), feeds, backend="vitis", simulation=True)


def test_table_that_is_a_list(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("[1, 2]")
    with pytest.raises(BackendError, match="not a JSON object"):
        read_json(tmp_path / "t.json", [])


def test_bias_scale_beyond_float32() -> None:
    """Large data meets weights of 0 only, large weights small data; the product of the scales is beyond float32."""
    weight = normal(4, 4, 3, 3, scale=1e29)
    weight[:, 0] = 0
    model = build(
        "(float[1, 4, 8, 8] x) => (float[1, 4, 6, 6] y) { a = Mul (x, f) y = Conv (a, w, b) }",
        f=f32([1e29, 1e-20, 1e-20, 1e-20]).reshape(4, 1, 1),
        w=weight,
        b=normal(4),
    )
    made = quantize(model, images(1, 4, 8, 8), options=ALL)
    assert {site.role for site in made.plan.sites} >= {"activation", "weight", "bias"}
    assert all(np.isfinite(qp.scale).all() for qp in made.qparams.values())
