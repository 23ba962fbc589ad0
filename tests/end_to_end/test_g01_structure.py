"""Group 1: the structure of the graph."""

from __future__ import annotations

import logging

import onnx
import pytest

from onnxq import ModelError, Options, quantize
from tests.cases import g01
from tests.contract import ALL, infer, quantize_checked, sqnr
from tests.models import build, f32, feeds_for, images, normal, untouched


def test_input_is_output() -> None:
    result = quantize_checked(*g01.input_is_output())
    assert result.sqnr["x"] == float("inf"), "the input must pass through in float"


def test_constant_is_output() -> None:
    assert quantize_checked(*g01.constant_is_output()).sqnr["w"] == float("inf")


def test_one_tensor_is_two_outputs_by_identity() -> None:
    quantize_checked(*g01.two_outputs_by_identity())


def test_same_tensor_twice_in_node() -> None:
    result = quantize_checked(*g01.same_tensor_twice_in_node())
    add = next(n for n in result.proto.graph.node if n.op_type == "Add")
    assert add.input[0] == add.input[1], "one pair of Q and DQ must feed both inputs"
    assert result.ops.count("QuantizeLinear") == 3  # x, a, y


def test_optional_empty_outputs() -> None:
    model, feeds = g01.optional_empty_outputs()
    assert model.graph.node[1].output[1] == ""
    result = quantize_checked(model, feeds)
    assert "MaxPool" in result.quantized.plan.quantized.values()


def test_optional_empty_inputs() -> None:
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) {
            c = Conv (x, w)
            y = Clip (c, low)
        }""",
        w=normal(4, 3, 3, 3),
        low=f32(-0.25),
    )
    model.graph.node[0].input.append("")
    model.graph.node[1].input.append("")
    quantize_checked(model, images(1, 3, 8, 8))
    model.graph.node[1].input[:] = ["c", "", "low"]
    quantize_checked(model, images(1, 3, 8, 8))


def test_unsorted_nodes(caplog: pytest.LogCaptureFixture) -> None:
    model, feeds = g01.unsorted_nodes()
    in_order = onnx.ModelProto()
    in_order.CopyFrom(model)
    del in_order.graph.node[:]
    in_order.graph.node.extend(reversed(model.graph.node))
    with caplog.at_level(logging.WARNING, logger="onnxq"):
        quantized = quantize(model, feeds, options=ALL)
    assert "out of order" in caplog.text
    expected = quantize(in_order, feeds, options=ALL)
    assert quantized.plan.to_text() == expected.plan.to_text()
    assert quantized.qparams == expected.qparams


def test_bias_computed_from_constants() -> None:
    result = quantize_checked(*g01.bias_computed_from_constants())
    assert "Mul" not in result.ops, "the bias must be folded"


def test_bias_computed_not_const() -> None:
    result = quantize_checked(*g01.bias_computed_not_const())
    conv = next(n for n in result.proto.graph.node if n.op_type == "Conv")
    made_by = {o: n.op_type for n in result.proto.graph.node for o in n.output}
    assert made_by[conv.input[1]] == "DequantizeLinear"


def test_weight_computed_at_run_time() -> None:
    model = build(
        "(float[1, 3, 8, 8] x, float[4, 3, 3, 3] w) => (float[1, 4, 6, 6] y) { [c] y = Conv (x, w) }",
    )
    result = quantize_checked(model, feeds_for(model), least=None)
    assert result.sqnr["y"] > 20 or "run time" in result.reasons["c"]


def test_topk_nonzero_int_paths() -> None:
    result = quantize_checked(*g01.topk_nonzero_int_paths())
    types = {v.name: v.type.tensor_type.elem_type for v in result.proto.graph.output}
    assert types["indices"] == types["found"] == onnx.TensorProto.INT64
    for node in result.proto.graph.node:
        if node.op_type == "QuantizeLinear":
            assert node.input[0] not in ("indices", "found", "k")


def test_batchnorm_in_training_mode_is_not_folded() -> None:
    result = quantize_checked(*g01.batchnorm_in_training_mode(), least=None)
    assert "BatchNormalization" in result.ops
    assert "training" in result.notes


def test_batchnorm_for_inference_is_folded_exactly() -> None:
    model, feeds = g01.batchnorm_for_inference()
    quantized = quantize(model, feeds, options=ALL)
    assert "BatchNormalization" not in [n.op_type for n in quantized.model.graph]
    result = quantize_checked(model, feeds)
    assert result.worst > 30


def test_batchnorm_of_a_tensor_read_twice_keeps_both() -> None:
    quantize_checked(*g01.batchnorm_read_twice())


def test_residual_where_a_branch_is_an_output() -> None:
    quantize_checked(*g01.residual_branch_is_output())


def test_undefined_name_is_found_before_calibration() -> None:
    model, _ = g01.undefined_name()

    with pytest.raises(ModelError, match=r"invalid model.*'c'.*'nowhere'"):
        quantize(model, untouched)


def test_cycle_is_found_before_calibration() -> None:
    model, _ = g01.cycle()

    with pytest.raises(ModelError, match=r"invalid model.*cycle.*n1.*n2|invalid model.*cycle.*n2.*n1"):
        quantize(model, untouched)


def test_no_node_at_all() -> None:
    model = build("(float[1, 4] x) => (float[1, 4] x) { }")
    result = quantize_checked(model, images(1, 4), least=None)
    assert result.sqnr["x"] == float("inf")


def test_nothing_to_quantize_is_said() -> None:
    result = quantize_checked(*g01.nothing_to_quantize(), least=None)
    assert result.ops == ["Exp", "Sin"]
    assert len(result.reasons) == 2


def test_dead_branch_is_dropped() -> None:
    assert quantize_checked(*g01.dead_branch()).ops.count("Conv") == 1


@pytest.mark.parametrize("placement", ["auto", "all", "compute"])
def test_every_placement_satisfies_the_contract(placement: str) -> None:
    model = build(
        """(float[1, 16, 32, 32] x) => (float[1, 10] y) {
            a = Conv <pads = [1, 1, 1, 1]> (x, w1)
            r = Relu (a)
            b = Conv <pads = [1, 1, 1, 1]> (r, w2)
            s = Add (r, b)
            p = GlobalAveragePool (s)
            f = Flatten (p)
            y = Gemm (f, w3, b3)
        }""",
        w1=normal(16, 16, 3, 3),
        w2=normal(16, 16, 3, 3, seed=1),
        w3=normal(16, 10),
        b3=normal(10, seed=2),
    )
    feeds = images(1, 16, 32, 32, samples=3)
    result = quantize_checked(model, feeds, Options(placement=placement))  # type: ignore[arg-type]
    expected = infer(model, feeds, optimize=False)
    assert sqnr(expected["y"], infer(result.proto, feeds, optimize=True)["y"]) == result.sqnr["y"]
