"""Group 6: the forms in which a model may hold a constant."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxq import Options, quantize
from tests.cases import g06
from tests.contract import ALL, GIVEN, quantize_checked
from tests.models import build, constants_of, f32, images, normal

CONSTANTS = {
    "value_float": "value_float = 2.5",
    "value_floats": "value_floats = [2.5]",
    "value": "value = float {2.5}",
    "value of one element": "value = float[1] {2.5}",
}


@pytest.mark.parametrize("form", CONSTANTS.values(), ids=CONSTANTS.keys())
def test_value_float_as_operand(form: str) -> None:
    model, feeds = g06.value_float_as_operand(form)
    reference, _ = g06.value_float_as_operand()
    result, expected = quantize_checked(model, feeds), quantize_checked(reference, feeds)
    assert "Constant" not in result.ops
    assert result.quantized.plan.quantized == expected.quantized.plan.quantized
    assert "mul" in result.quantized.plan.quantized
    assert result.sqnr == expected.sqnr


@pytest.mark.parametrize("form", ["value_ints = [2, 3]", "value = int64[2] {2, 3}"])
def test_value_ints_as_shape(form: str) -> None:
    model = build(
        f"""(float[1, 3, 8, 8] x) => (float[1, 1, 1, 144] y) {{
            c = Conv (x, w)
            f = Flatten (c)
            axes = Constant <{form}> ()
            y = Unsqueeze (f, axes)
        }}""",
        w=normal(4, 3, 3, 3),
    )
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 144, 1, 1]))
    result = quantize_checked(model, images(1, 3, 8, 8))
    assert "Unsqueeze" in result.quantized.plan.quantized.values()


def test_value_int_as_index() -> None:
    assert "Gather" in quantize_checked(*g06.value_int_as_index()).quantized.plan.quantized.values()


@pytest.mark.parametrize("zero", ["value_int = 0", "value = uint8 {128}"])
def test_value_float_as_scale_of_a_quantizer(zero: str) -> None:
    """Q and DQ of the model whose scale is a Constant node."""
    cast = "z = Cast <to = 2> (z0)"
    model = build(
        f"""(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) {{
            s = Constant <value_float = 0.03> ()
            z0 = Constant <{zero}> ()
            {cast}
            q = QuantizeLinear (x, s, z)
            d = DequantizeLinear (q, s, z)
            [c] h = Conv (d, w)
            [e] y = Conv (h, v)
        }}""",
        w=normal(4, 3, 3, 3),
        v=normal(4, 4, 1, 1, seed=1),
    )
    result = quantize_checked(model, images(1, 3, 8, 8), least=None, agree=GIVEN)
    assert "already quantized" in result.reasons["c"]
    first = next(n for n in result.proto.graph.node if n.op_type == "QuantizeLinear" and n.input[0] == "x")
    constants = constants_of(result.proto)
    assert constants[first.input[1]] == np.float32(0.03)


def stored_forms() -> dict[str, TensorProto]:
    numbers = normal(4, 3, 3, 3)
    raw = numpy_helper.from_array(numbers, "w")
    fields = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=numbers.shape, float_data=numbers.ravel())
    return {"raw_data": raw, "float_data": fields}


def test_same_weight_in_raw_data_and_float_data(tmp_path: Path) -> None:
    forms = stored_forms()
    assert forms["float_data"].float_data
    assert not forms["float_data"].raw_data
    written = []
    for name, tensor in forms.items():
        path = tmp_path / f"{name}.onnx"
        quantize_checked(g06.with_weight(tensor), images(1, 3, 8, 8), output=path)
        written.append(path.read_bytes())
    assert written[0] == written[1]


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_same_half_weight_in_raw_data_and_int32_data(tmp_path: Path, kind: str) -> None:
    dtype = np.dtype(np.float16) if kind == "float16" else np.dtype(ml_dtypes.bfloat16)
    elem_type = getattr(TensorProto, kind.upper())
    numbers = normal(4, 3, 3, 3).astype(dtype)
    raw = TensorProto(name="w", data_type=elem_type, dims=numbers.shape, raw_data=numbers.tobytes())
    fields = TensorProto(name="w", data_type=elem_type, dims=numbers.shape)
    fields.int32_data.extend(numbers.view(np.uint16).ravel().tolist())
    written = []
    for name, tensor in (("raw", raw), ("fields", fields)):
        path = tmp_path / f"{name}.onnx"
        result = quantize_checked(g06.with_weight(tensor, elem_type), images(1, 3, 8, 8), output=path)
        assert result.quantized.plan.quantized == {"c": "Conv"}
        written.append(path.read_bytes())
    assert written[0] == written[1]


def test_same_weight_as_initializer_and_as_constant_node() -> None:
    numbers = normal(4, 3, 3, 3)
    plain = build("(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) { [c] y = Conv (x, w) }", w=numbers)
    node = build("(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) { [c] y = Conv (x, w) }")
    node.graph.node.insert(0, helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(numbers)))
    first, second = (quantize_checked(model, images(1, 3, 8, 8)) for model in (plain, node))
    assert first.quantized.plan.to_text() == second.quantized.plan.to_text()
    assert first.sqnr == second.sqnr


def test_sparse_weight() -> None:
    sparse, feeds = g06.sparse_weight()
    numbers = np.zeros((4, 3, 3, 3), np.float32)
    stored = sparse.graph.sparse_initializer[0]
    numbers.ravel()[numpy_helper.to_array(stored.indices)] = numpy_helper.to_array(stored.values)
    dense = build("(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) { [c] y = Conv (x, w) }", w=numbers)
    first, second = (quantize(model, feeds, options=ALL) for model in (dense, sparse))
    assert first.plan.to_text() == second.plan.to_text()
    assert first.qparams == second.qparams


def test_concat_with_empty_tensor() -> None:
    result = quantize_checked(*g06.concat_with_empty_tensor())
    assert "c" in result.quantized.plan.quantized


def test_concat_with_empty_tensor_of_the_graph() -> None:
    """The empty operand comes from the input: a cache that starts empty."""
    quantize_checked(*g06.concat_with_empty_input())


@pytest.mark.parametrize("channelwise", [True, False])
@pytest.mark.parametrize("zero", [False, True])
def test_dequantized_int8_weight(channelwise: bool, zero: bool) -> None:
    shape = (4,) if channelwise else ()
    extra = {"z": np.zeros(shape, np.int8)} if zero else {}
    model = g06.int8_conv(channelwise=channelwise, **extra)
    result = quantize_checked(model, images(1, 3, 8, 8), least=20)
    before = constants_of(model)
    after = constants_of(result.proto)
    dq = next(n for n in result.proto.graph.node if "w" in n.output)
    np.testing.assert_array_equal(after[dq.input[0]], before["q"])
    np.testing.assert_array_equal(after[dq.input[1]], before["s"])
    assert result.quantized.plan.quantized.keys() >= {"d"}


def test_quantizer_on_a_float_weight() -> None:
    """Q and DQ on a float weight, as training frameworks export it: the scale of training is kept."""
    model, feeds = g06.quantizer_on_a_float_weight()
    before = constants_of(model)
    numbers, scale = before["w"], before["s"]
    result = quantize_checked(model, feeds)
    constants = constants_of(result.proto)
    conv = next(n for n in result.proto.graph.node if n.name == "c")
    dq = next(n for n in result.proto.graph.node if conv.input[1] in n.output)
    assert dq.op_type == "DequantizeLinear"
    assert constants[dq.input[0]].dtype == np.int8, "the weight is stored as the integers it becomes"
    assert "w" not in constants
    expected = np.clip(np.rint(numbers / scale.reshape(4, 1, 1, 1)), -128, 127)
    np.testing.assert_array_equal(constants[dq.input[0]], expected)
    np.testing.assert_array_equal(constants[dq.input[1]], scale)
    assert "e" in result.quantized.plan.quantized


def test_weight_computed_from_constants_in_many_steps() -> None:
    model, feeds = g06.weight_computed_in_steps()
    result = quantize_checked(model, feeds)
    assert result.quantized.plan.quantized == {"m": "MatMul"}
    assert not {"Transpose", "Mul", "Reshape"} & {*result.ops}


def test_shape_of_a_scalar_does_not_matter() -> None:
    """One number, without dimensions and as an array of one element."""
    scores = []
    for k in (f32(2.5), f32([2.5]), f32([[[2.5]]])):
        model = build(
            "(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) { c = Conv (x, w)  s = Sigmoid (c)  y = Mul (s, k) }",
            w=normal(4, 3, 3, 3),
            k=k,
        )
        scores.append(quantize_checked(model, images(1, 3, 8, 8), Options(placement="all")).worst)
    assert len(set(scores)) == 1
