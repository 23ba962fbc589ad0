"""Group 6: the forms that constants come in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxq import Options, quantize
from tests.contract import ALL, quantize_checked
from tests.models import build, f32, feeds_for, images, normal

WEIGHT = normal(4, 3, 3, 3)


@pytest.mark.parametrize(
    "attribute",
    ["value_float = 2.0", "value_floats = [2.0]", "value = float {2.0}", "value = float[1] {2.0}"],
)
def test_constant_node_as_scale_operand(attribute: str) -> None:
    model = build(
        f"""(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) {{
            c = Conv (x, w)
            k = Constant <{attribute}> ()
            y = Mul (c, k)
        }}""",
        w=WEIGHT,
    )
    result = quantize_checked(model, images(1, 3, 8, 8))
    assert result.ops.count("Mul") == 0, "a constant factor behind a Conv is folded, in whatever form"


@pytest.mark.parametrize("attribute", ["value_ints = [1, 144]", "value = int64[2] {1, 144}"])
def test_constant_node_as_shape_operand(attribute: str) -> None:
    model = build(
        f"""(float[1, 3, 8, 8] x) => (float[1, 144] y) {{
            c = Conv (x, w)
            k = Constant <{attribute}> ()
            y = Reshape (c, k)
        }}""",
        w=WEIGHT,
    )
    assert quantize_checked(model, images(1, 3, 8, 8)).ops.count("Constant") == 0


def test_shape_put_together_from_constant_nodes() -> None:
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 144] y) {
            c = Conv (x, w)
            one = Constant <value_int = 1> ()
            head = Unsqueeze (one, axes)
            tail = Constant <value_ints = [144]> ()
            shape = Concat <axis = 0> (head, tail)
            y = Reshape (c, shape)
        }""",
        w=WEIGHT,
        axes=np.array([0]),
    )
    assert quantize_checked(model, images(1, 3, 8, 8)).ops.count("Concat") == 0


def test_weight_in_a_constant_node() -> None:
    model = build("(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) { y = Conv (x, w) }")
    model.graph.node.insert(
        0, helper.make_node("Constant", [], ["w"], name="k", value=numpy_helper.from_array(WEIGHT, "inner"))
    )
    result = quantize_checked(model, images(1, 3, 8, 8))
    assert "Constant" not in result.ops
    assert any(t.data_type == TensorProto.INT8 for t in result.proto.graph.initializer)


@pytest.mark.parametrize(
    "body",
    [
        "t = Transpose <perm = [1, 0]> (w0)  y = MatMul (x, t)",
        "i = Identity (w0)  t = Transpose <perm = [1, 0]> (i)  y = MatMul (x, t)",
        "d = Cast <to = 11> (w0)  f = Cast <to = 1> (d)  t = Transpose <perm = [1, 0]> (f)  y = MatMul (x, t)",
        "s = Mul (w0, k)  t = Transpose <perm = [1, 0]> (s)  y = MatMul (x, t)",
        "r = Reshape (w0, shape)  y = MatMul (x, r)",
        "s = Sqrt (w0)  u = Mul (s, s)  t = Transpose <perm = [1, 0]> (u)  y = MatMul (x, t)",
    ],
)
def test_weight_behind_other_constants(body: str) -> None:
    constants = {"w0": np.abs(normal(6, 16)), "k": f32(0.5), "shape": np.array([16, 6])}
    used = {name: value for name, value in constants.items() if f"({name}" in body or f", {name}" in body}
    model = build(f"(float[N, 16] x) => (float[N, 6] y) {{ {body} }}", **used)
    result = quantize_checked(model, feeds_for(model, N=4))
    assert list(result.quantized.plan.quantized.values()) == ["MatMul"]


def stored(form: str) -> onnx.ModelProto:
    """One model whose weight lies in one of the fields that a TensorProto has."""
    model = build("(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) { y = Conv (x, w) }")
    half = WEIGHT.astype(np.float16).astype(np.float32)  # numbers that every form holds exactly
    tensor = TensorProto(name="w", dims=half.shape, data_type=TensorProto.FLOAT)
    if form == "raw_data":
        tensor.raw_data = half.tobytes()
    else:
        tensor.float_data.extend(half.reshape(-1).tolist())
    model.graph.initializer.append(tensor)
    return model


def test_weight_as_raw_data_and_float_data_gives_the_same_bytes(tmp_path: Path) -> None:
    files = []
    for form in ("raw_data", "float_data"):
        path = tmp_path / f"{form}.onnx"
        quantize_checked(stored(form), images(1, 3, 8, 8), output=path)
        files.append(path.read_bytes())
    assert files[0] == files[1]


def test_fp16_weight_as_raw_data_and_int32_data_gives_the_same_bytes(tmp_path: Path) -> None:
    files = []
    half = WEIGHT.astype(np.float16)
    for form in ("raw_data", "int32_data"):
        model = build("(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) { c = Cast <to = 1> (w)  y = Conv (x, c) }")
        tensor = TensorProto(name="w", dims=half.shape, data_type=TensorProto.FLOAT16)
        if form == "raw_data":
            tensor.raw_data = half.tobytes()
        else:
            tensor.int32_data.extend(half.view(np.uint16).reshape(-1).tolist())
        model.graph.initializer.append(tensor)
        path = tmp_path / f"{form}.onnx"
        result = quantize_checked(model, images(1, 3, 8, 8), output=path)
        assert list(result.quantized.plan.quantized.values()) == ["Conv"]
        files.append(path.read_bytes())
    assert files[0] == files[1]


def test_sparse_weight() -> None:
    model = build("(float[N, 8] x) => (float[N, 4] y) { y = MatMul (x, w) }")
    values = numpy_helper.from_array(f32([1, -2, 3, 0.5]), "w")
    indices = numpy_helper.from_array(np.array([1, 9, 18, 31]), "w_idx")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [8, 4]))
    feeds = feeds_for(model, N=4)
    quantized = quantize(model, feeds, options=ALL)
    dense = np.zeros(32, np.float32)
    dense[[1, 9, 18, 31]] = [1, -2, 3, 0.5]
    assert quantized.verification is not None
    assert quantized.verification.outputs["y"].sqnr > 30
    assert list(quantized.plan.quantized.values()) == ["MatMul"]


def test_concat_with_empty_tensor() -> None:
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) {
            a = Conv (x, w)
            c = Concat <axis = 0> (a, empty)
            y = Relu (c)
        }""",
        w=WEIGHT,
        empty=np.zeros((0, 4, 6, 6), np.float32),
    )
    quantize_checked(model, images(1, 3, 8, 8))


def test_concat_with_a_constant() -> None:
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 6, 6, 6] y) {
            a = Conv (x, w)
            c = Concat <axis = 1> (a, more)
            y = Relu (c)
        }""",
        w=WEIGHT,
        more=normal(1, 2, 6, 6, scale=1),
    )
    quantize_checked(model, images(1, 3, 8, 8))


def test_dequantized_weight_in_the_model() -> None:
    """DQ(int8 w) → Conv: the numbers stored stay as they are."""
    w = np.random.default_rng(0).integers(-127, 128, (4, 3, 3, 3)).astype(np.int8)
    scale = f32([0.01, 0.02, 0.005, 0.015])
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 4, 4] y) {
            d = DequantizeLinear <axis = 0> (w, s, z)
            [c1] h = Conv (x, d)
            [c2] y = Conv (h, v)
        }""",
        w=w,
        s=scale,
        z=np.zeros(4, np.int8),
        v=normal(4, 4, 3, 3),
    )
    result = quantize_checked(model, images(1, 3, 8, 8))
    constants = {t.name: numpy_helper.to_array(t) for t in result.proto.graph.initializer}
    conv = next(n for n in result.proto.graph.node if n.name == "c1")
    dq = next(n for n in result.proto.graph.node if conv.input[1] in n.output)
    np.testing.assert_array_equal(constants[dq.input[0]], w)
    np.testing.assert_array_equal(constants[dq.input[1]], scale)
    assert "c2" in result.quantized.plan.quantized
    assert "c1" in result.quantized.plan.quantized or "already quantized" in result.reasons["c1"]


def test_fake_quantized_weight_in_the_model() -> None:
    """Q → DQ on a float weight, as training leaves it: its scale is kept."""
    scale = f32([0.01, 0.02, 0.005, 0.015])
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 4, 4] y) {
            q = QuantizeLinear <axis = 0> (w, s, z)
            d = DequantizeLinear <axis = 0> (q, s, z)
            [c1] h = Conv (x, d)
            [c2] y = Conv (h, v)
        }""",
        w=WEIGHT,
        s=scale,
        z=np.zeros(4, np.int8),
        v=normal(4, 4, 3, 3),
    )
    result = quantize_checked(model, images(1, 3, 8, 8))
    constants = {t.name: numpy_helper.to_array(t) for t in result.proto.graph.initializer}
    conv = next(n for n in result.proto.graph.node if n.name == "c1")
    dq = next(n for n in result.proto.graph.node if conv.input[1] in n.output)
    np.testing.assert_array_equal(constants[dq.input[1]], scale)
    assert "c2" in result.quantized.plan.quantized


def test_large_constants_that_a_few_numbers_make() -> None:
    """An Expand to 64 MB must not make the file grow."""
    model = build(
        """(float[1, 8] x) => (float[1, 4] y) {
            big = Expand (k, shape)
            some = Slice (big, start, stop)
            h = MatMul (x, w)
            y = Add (h, some)
        }""",
        k=f32([0.25]),
        shape=np.array([1 << 24]),
        start=np.array([0]),
        stop=np.array([4]),
        w=normal(8, 4),
    )
    result = quantize_checked(model, images(1, 8))
    assert len(result.proto.SerializeToString()) < 100_000


@pytest.mark.parametrize("value", [b"text", None])
def test_constants_that_are_no_numbers(value: Any) -> None:
    body = 't = Constant <value_string = "text"> ()' if value else 't = Constant <value_strings = ["a", "b"]> ()'
    shape = "" if value else "[2]"
    model = build(
        f"(float[N, 8] x) => (float[N, 4] y, string{shape} label) {{ y = MatMul (x, w)  {body}  label = Identity (t) }}",
        w=normal(8, 4),
    )
    quantize_checked(model, feeds_for(model, N=3), Options(placement="all"))
