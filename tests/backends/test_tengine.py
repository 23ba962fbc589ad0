"""Tengine: the scale file, and weights from which its tool makes the numbers that were meant."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

import onnxq
from onnxq import Options
from onnxq.backend_choice import backend_named
from onnxq.errors import BackendError, ModelError
from onnxq.graph.values import constant_array
from onnxq.ort.session import Session
from onnxq.qparams import QParams, fake_quantize
from onnxq.ranged import from_range
from onnxq.render.tengine_weights import as_the_tool_sees, for_the_tool
from onnxq.spec import QuantSpec
from tests.models import build, constants_of, f32, images, normal, renamed

Array = NDArray[Any]
MINMAX = Options(range="minmax", bias_correction=False)


def tool(w: Array) -> tuple[np.float32, int, Array]:
    """Scale, zero point and integers as quant_tool_uint8 computes them, element by element, all in float32."""
    scale = np.float32(np.float32(w.max() - w.min()) / np.float32(255))
    zero = int(np.float32(-w.min() / scale))
    integers = np.zeros(w.shape, np.int64)
    for index, value in np.ndenumerate(w):
        shifted = float(np.float32(np.float32(value / scale) + np.float32(zero)))
        rounded = int(abs(shifted) + 0.5) * (1 if shifted >= 0 else -1)
        integers[index] = min(255, max(0, rounded))
    return scale, zero, integers


def mixed() -> onnx.ModelProto:
    """Conv with Relu, a gate with two readers, Concat behind which a Clip stands alone, pools, Flatten, Gemm."""
    return build(
        """(float[1, 3, 8, 8] x) => (float[1, 5] y) {
            [conv] a = Conv <pads = [1, 1, 1, 1]> (x, w1, b1)
            [relu] r = Relu (a)
            [gate] s = HardSwish (r)
            [join] c = Concat <axis = 1> (s, r)
            [clip] k = Clip (c, zero, one)
            [pool] p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (k)
            [mean] g = GlobalAveragePool (p)
            [flat] f = Flatten (g)
            [head] y = Gemm <transB = 1> (f, w2, b2)
        }""",
        w1=normal(4, 3, 3, 3),
        b1=normal(4, seed=1, scale=0.1),
        w2=normal(5, 8, seed=2),
        b2=normal(5, seed=3, scale=0.1),
        zero=f32(0),
        one=f32(1),
    )


def table(path: Path) -> dict[str, tuple[float, int]]:
    lines = [line.split(" ") for line in path.read_text().splitlines()]
    return {name: (float(scale), int(zero)) for name, scale, zero in lines}


def weights(path: Path) -> dict[str, Array]:
    return constants_of(onnx.load(path))


def test_the_scale_file_of_a_tiny_net(tmp_path: Path) -> None:
    """Numbers by hand: x in -1..2, conv times -1..., its Relu 0..2, a Sigmoid 0..1, the Gemm's output -2.5..2.48."""
    model = build(
        """(float[1, 2, 1, 1] x) => (float[1, 1] y) {
            [conv] a = Conv (x, w1)
            [relu] r = Relu (a)
            [sigmoid] s = Sigmoid (r)
            [join] c = Concat <axis = 1> (s)
            [flat] f = Flatten (c)
            [head] y = Gemm <transB = 1> (f, w2)
        }""",
        w1=f32([[[[1.0]], [[0.0]]], [[[0.0]], [[-0.5]]]]),
        w2=f32([[-2.5, 2.5]]),
    )
    feeds = [{"x": f32([[[[-1.0]], [[2.0]]]])}, {"x": f32([[[[2.0]], [[-1.0]]]])}]
    made = onnxq.quantize(model, feeds, backend="tengine", output=tmp_path, options=MINMAX)
    lines = made.files[1].read_text().splitlines()
    assert made.files[1].name == "model_tengine.scale"
    assert [line.split(" ")[0] for line in lines] == ["x", "a", "r", "s", "c", "f", "y"]
    assert lines[0] == "x 0.011764706 85"  # 3 / 255, round(1 / scale)
    assert lines[1].split(" ")[1:] == lines[2].split(" ")[1:] == ["0.007843138", "0"]  # Relu: 0 to 2
    assert lines[3] == "s 0.003921569 0"  # Sigmoid: 1 / 255
    assert lines[4].split(" ")[1:] == lines[5].split(" ")[1:]  # Flatten hands its input on


def test_the_tool_makes_the_weights_that_were_simulated(tmp_path: Path) -> None:
    made = onnxq.quantize(mixed(), images(1, 3, 8, 8), backend="tengine", output=tmp_path)
    stored = weights(made.files[0])
    for name in ("w1", "w2"):
        scale, zero, integers = tool(stored[name])
        meant, chosen = made.qparams[name], constant_array(made.model.graph.initializers[name])
        assert (float(scale), zero) == (float(meant.scale), int(meant.zero_point))
        assert chosen is not None
        np.testing.assert_array_equal((integers - zero).astype(np.float32) * scale, fake_quantize(chosen, meant))
        assert np.abs(stored[name] - chosen).max() <= 0.76 * float(scale)
        bias = made.qparams["b" + name[1:]]
        source = {"w1": "x", "w2": "f"}[name]
        assert bias.scale == np.float32(made.qparams[source].scale * scale)


@pytest.mark.parametrize("seed", range(40))
def test_the_tool_can_be_made_to_choose(seed: int) -> None:
    """Any weights: of one sign, with an outlier, already on a grid, tiny and huge, two opposite numbers."""
    rng = np.random.default_rng(seed)
    w = rng.standard_normal((6, 5, 3)).astype(np.float32) * np.float32(10.0 ** rng.integers(-20, 20))
    kind = seed % 4
    if kind == 1:
        w = np.abs(w) + np.float32(0.3) * np.abs(w).max()
    elif kind == 2:
        w = -np.abs(w)
    elif kind == 3:
        w[0, 0, 0] = 100 * np.abs(w).max()
    if seed >= 24:
        w = w[:1, :1, :2]
        w[..., 0] = -w[..., 1]
    wanted = from_range(w.min(), w.max(), QuantSpec(signed=False, symmetric=False))
    for given in (w, fake_quantize(w, wanted)):
        numbers = for_the_tool(given, wanted)
        made = as_the_tool_sees(given, numbers)
        assert made is not None
        scale, zero, integers = tool(made)
        assert (float(scale), zero) == (float(numbers.scale), int(numbers.zero_point))
        simulated = fake_quantize(given, numbers)
        np.testing.assert_array_equal((integers - zero).astype(np.float32) * scale, simulated)


def test_a_grid_written_as_it_is_would_lose_its_zero_point() -> None:
    """Why the ends of the weights are moved: on grid points the tool's division falls short of whole numbers."""
    lost = 0
    for seed in range(40):
        w = np.random.default_rng(seed).standard_normal(64).astype(np.float32)
        wanted = from_range(w.min(), w.max(), QuantSpec(signed=False, symmetric=False))
        lost += tool(fake_quantize(w, wanted))[1] != wanted.zero_point
    assert lost > 0


def test_tensors_carry_the_numbers_of_what_follows(tmp_path: Path) -> None:
    made = onnxq.quantize(mixed(), images(1, 3, 8, 8), backend="tengine", output=tmp_path)
    lines = table(made.files[1])
    assert list(lines) == ["x", "a", "r", "s", "c", "k", "p", "g", "f", "y"], "every tensor, in order"
    assert lines["a"] == lines["r"], "the fused Relu's numbers stand at the Conv"
    assert lines["c"] == lines["k"] == lines["p"], "absorbed Clip, MaxPool hands on"
    assert lines["g"] == lines["f"]


def test_a_relu_whose_input_is_moved_hands_its_numbers_back(tmp_path: Path) -> None:
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 192] y) {
            [conv] a = Conv <pads = [1, 1, 1, 1]> (x, w)
            [pool] p = MaxPool <kernel_shape = [1, 1]> (a)
            [flat] f = Flatten (p)
            [relu] y = Relu (f)
        }""",
        w=normal(3, 3, 3, 3),
    )
    made = onnxq.quantize(model, images(1, 3, 8, 8), backend="tengine", output=tmp_path, options=MINMAX)
    lines = table(made.files[1])
    assert lines["a"] == lines["f"] == lines["y"] and lines["y"][1] == 0


def test_read_back_it_computes_the_same(tmp_path: Path) -> None:
    feeds = images(1, 3, 8, 8)
    made = onnxq.quantize(mixed(), feeds, backend="tengine", output=tmp_path)
    back = backend_named("tengine").formats["tengine"].read
    assert back is not None
    again = back(made.files[0])
    first, second = Session(made.rendered(), optimize=False), Session(again.rendered(), optimize=False)
    for sample in feeds:
        np.testing.assert_array_equal(first.run(sample)["y"], second.run(sample)["y"])
    assert again.save(tmp_path / "again.onnx")[1].read_text() == made.files[1].read_text()


def test_symmetric_numbers_are_written_unsigned(tmp_path: Path) -> None:
    options = Options(range="minmax", symmetric=True)
    made = onnxq.quantize(mixed(), images(1, 3, 8, 8), backend="tengine", output=tmp_path, options=options)
    lines = table(made.files[1])
    assert lines["x"][0] == pytest.approx(float(made.qparams["x"].scale)) and lines["x"][1] == 128


def test_equal_weights_stay_float_with_a_reason() -> None:
    model = build(
        "(float[1, 1, 8, 8] x) => (float[1, 1, 6, 6] y) { [blur] y = Conv (x, w) }",
        w=np.full((1, 1, 3, 3), 1 / 9, np.float32),
    )
    plan = onnxq.plan(model, backend="tengine")
    assert [(k.node, k.reason) for k in plan.kept_float] == [
        ("blur", "all its weights are equal, and quant_tool_uint8 divides by their range")
    ]
    found = [f.where for f in onnxq.check(model, backend="tengine") if f.what.startswith("all its weights are equal")]
    assert found == ["node 'blur' (Conv)"]


def test_check_names_what_the_tool_cannot_scale() -> None:
    model = build(
        "(float[1, 4, 8] x) => (float[1, 4, 8] y) { [norm] n = LayerNormalization (x, g)\n [mm] y = MatMul (n, w) }",
        g=np.ones(8, np.float32),
        w=normal(8, 8),
    )
    found = {f.where: f.what for f in onnxq.check(model, backend="tengine")}
    assert "no such operator" in found["node 'norm' (LayerNormalization)"]
    assert "MatMul of three axes" in found["node 'mm' (MatMul)"]


def test_a_matmul_of_two_axes_is_fully_connected(tmp_path: Path) -> None:
    model = build("(float[2, 8] x) => (float[2, 3] y) { [mm] y = MatMul (x, w) }", w=normal(8, 3))
    made = onnxq.quantize(model, images(2, 8), backend="tengine", output=tmp_path)
    assert made.plan.quantized == {"mm": "Gemm"}
    assert [n.op_type for n in onnx.load(made.files[0]).graph.node] == ["Gemm"]


def test_blanks_in_names(tmp_path: Path) -> None:
    text = "(float[1, 3, 8, 8] x) => (float[1, 3, 6, 6] y) { a = Relu (x)\n y = Conv (a, w) }"
    inner = renamed(build(text, w=normal(3, 3, 3, 3)), {"a": "a b"})
    made = onnxq.quantize(inner, images(1, 3, 8, 8), backend="tengine", output=tmp_path)
    assert list(table(made.files[1])) == ["x", "a_b", "y"]
    assert onnx.load(made.files[0]).graph.node[0].output[0] == "a_b"
    outer = renamed(build(text, w=normal(3, 3, 3, 3)), {"y": "y z"})
    with pytest.raises(ModelError, match="blanks"):
        onnxq.quantize(outer, images(1, 3, 8, 8), backend="tengine")


def test_numbers_that_the_tool_cannot_choose_are_an_error(tmp_path: Path) -> None:
    made = onnxq.quantize(mixed(), images(1, 3, 8, 8), backend="tengine")
    wide: dict[str, QParams] = {**made.qparams}
    wide["w1"] = QParams(wide["w1"].spec, np.asarray(wide["w1"].scale * 4), wide["w1"].zero_point)
    with pytest.raises(BackendError, match="w1"):
        replace(made, qparams=wide).save(tmp_path / "wide.onnx")


@pytest.mark.parametrize("text", ["x\n", "x one two\n", "nothing 0.5 3\n"])
def test_a_broken_table_is_an_error(text: str, tmp_path: Path) -> None:
    made = onnxq.quantize(mixed(), images(1, 3, 8, 8), backend="tengine", output=tmp_path)
    made.files[1].write_text(text)
    read = backend_named("tengine").formats["tengine"].read
    assert read is not None
    with pytest.raises(BackendError):
        read(made.files[0])
