"""Group 2: operator sets, IR versions, initializers that are inputs."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxq import ModelError, OptionError, Options, quantize
from tests.cases import g02
from tests.contract import ALL, infer, quantize_checked, sqnr
from tests.models import build, f32, images, loads, normal


def opsets(model: onnx.ModelProto) -> dict[str, int]:
    return {entry.domain: entry.version for entry in model.opset_import}


def test_ir3_inits_as_inputs() -> None:
    result = quantize_checked(*g02.ir3_inits_as_inputs())
    assert [value.name for value in result.proto.graph.input] == ["x"]
    assert result.proto.ir_version >= 4, "before, every initializer would have to be an input"
    assert result.quantized.plan.quantized == {"c": "Conv"}
    assert "no longer listed as inputs" in result.notes


def test_ir3_where_an_initializer_is_only_read_in_a_branch() -> None:
    result = quantize_checked(*g02.ir3_branch())
    assert [value.name for value in result.proto.graph.input] == ["x", "choice"]


def test_ir8_overridable_weight() -> None:
    model, feeds = g02.ir8_overridable_weight()
    w = model.graph.initializer[0]
    result = quantize_checked(model, feeds)
    assert result.quantized.plan.quantized == {"c2": "Conv"}
    assert result.reasons.keys() == {"c1"}
    assert "callers may override it" in result.notes
    kept = next(t for t in result.proto.graph.initializer if t.name == "w")
    np.testing.assert_array_equal(numpy_helper.to_array(kept), numpy_helper.to_array(w))
    own = [{**sample, "w": normal(3, 3, 3, 3, seed=5)} for sample in feeds]
    expected, got = (infer(m, own, optimize=True)["y"] for m in (model, result.proto))
    assert sqnr(expected, got) > 20, "a caller's weight must be used"


def test_ir8_overridable_bias() -> None:
    model = g02.conv()
    model.graph.input.append(helper.make_tensor_value_info("b", TensorProto.FLOAT, [4]))
    feeds = images(1, 3, 8, 8)
    result = quantize_checked(model, feeds)
    own = [{**sample, "b": f32([3, -3, 2, -2])} for sample in feeds]
    expected, got = (infer(m, own, optimize=True)["y"] for m in (model, result.proto))
    assert sqnr(expected, got) > 20, "a caller's bias must be used"


def test_calibration_data_may_override_a_default() -> None:
    quantize_checked(*g02.data_overrides_a_default())


def test_opset12_reducesum_axes_attr() -> None:
    result = quantize_checked(*g02.opset12_reducesum_axes_attr())
    assert opsets(result.proto)[""] >= 13
    node = next(n for n in result.proto.graph.node if n.op_type == "ReduceSum")
    assert not [a for a in node.attribute if a.name == "axes"]
    constants = {t.name: numpy_helper.to_array(t).tolist() for t in result.proto.graph.initializer}
    assert constants[node.input[1]] == [2, 3], "the node must be converted with the opset"


@pytest.mark.parametrize("op", ["Squeeze", "Unsqueeze"])
def test_opset11_axes_become_inputs(op: str) -> None:
    shape = {"Squeeze": "6, 6", "Unsqueeze": "1, 1, 1, 6, 6"}[op]
    rest = {"Squeeze": "axes = [0, 1]", "Unsqueeze": "axes = [1]"}[op]
    model = build(
        f"(float[1, 3, 8, 8] x) => (float[{shape}] y) {{ c = Conv (x, w)  r = Relu (c)  y = {op} <{rest}> (r) }}",
        opset=11,
        ir_version=6,
        w=normal(1, 3, 3, 3),
    )
    quantize_checked(model, images(1, 3, 8, 8))


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 15, 17, 19, 21, 23, 24])
def test_every_opset(opset: int) -> None:
    if opset > 21:
        quantizer = build("(float[4] x) => (uint8[4] y) { y = QuantizeLinear (x, s) }", opset=opset, s=f32(0.1))
        if not loads(quantizer):
            pytest.skip(f"this onnxruntime has no QuantizeLinear of opset {opset}")
    result = quantize_checked(g02.conv(opset=opset, ir_version=10 if opset > 20 else 8), images(1, 3, 8, 8))
    assert opsets(result.proto)[""] >= max(opset, 13)
    assert result.quantized.plan.quantized == {"c": "Conv"}


def test_int4_weight_opset17() -> None:
    model, feeds = g02.int4_weight_opset17()
    result = quantize_checked(model, feeds, Options(placement="all", weight_bits=4), least=15)
    assert opsets(result.proto)[""] == 21
    assert {node.domain for node in result.proto.graph.node} == {""}, "no Q and DQ of com.microsoft"
    assert TensorProto.UINT4 in {t.data_type for t in result.proto.graph.initializer}


@pytest.mark.parametrize(("option", "bits"), [("weight_bits", 4), ("act_bits", 16)])
def test_opset17_has_no_such_integers(option: str, bits: int) -> None:
    options = Options(placement="all", opset=17, **{option: bits})  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=rf"opset 17 has no {bits}-bit integers.*21"):
        quantize(g02.conv(), images(1, 3, 8, 8), options=options)


def test_opset_asked_for() -> None:
    result = quantize_checked(g02.conv(opset=13), images(1, 3, 8, 8), Options(placement="all", opset=20))
    assert opsets(result.proto)[""] == 20


def test_opset_is_never_lowered() -> None:
    with pytest.raises(OptionError, match=r"opset 15 is older than the model's own, 17"):
        quantize(g02.conv(), images(1, 3, 8, 8), options=Options(placement="all", opset=15))


def test_three_opset_imports() -> None:
    result = quantize_checked(*g02.three_opset_imports())
    assert opsets(result.proto).items() >= {"com.microsoft": 1, "private.unused": 7}.items()


def test_standard_domain_by_its_long_name() -> None:
    model = g02.conv()
    model.opset_import[0].domain = "ai.onnx"
    assert quantize_checked(model, images(1, 3, 8, 8), ALL).quantized.plan.quantized == {"c": "Conv"}


def test_opset_from_the_future() -> None:
    with pytest.raises(ModelError, match=r"opset 999.*Upgrade"):
        quantize(*g02.opset_from_the_future())


def test_no_opset_at_all() -> None:
    model = build("(float[1, 4] x) => (float[1, 3] y) { y = MatMul (x, w) }", w=normal(4, 3))
    del model.opset_import[:]
    with pytest.raises(ModelError, match="imports no version"):
        quantize(model, images(1, 4))
