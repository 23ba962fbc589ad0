"""Group 5: tensors with several readers, and equal tensors under several names."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxq import Options
from tests.cases import g05
from tests.contract import quantize_checked
from tests.models import build, constants_of, images, normal


def bias_of(model: onnx.ModelProto, conv: str) -> np.ndarray:
    """The bias that a Conv reads, dequantized by hand."""
    constants = constants_of(model)
    made_by = {o: n for n in model.graph.node for o in n.output}
    node = next(n for n in model.graph.node if n.name == conv)
    dq = made_by[node.input[2]]
    assert constants[dq.input[0]].dtype == np.int32
    return np.asarray(constants[dq.input[0]] * constants[dq.input[1]].astype(np.float64))


def test_shared_bias_two_convs() -> None:
    model, feeds = g05.shared_bias_two_convs()
    result = quantize_checked(model, feeds, Options(placement="all", bias_correction=False))
    b = numpy_helper.to_array(next(t for t in model.graph.initializer if t.name == "b"))
    made_by = {o: n for n in result.proto.graph.node for o in n.output}
    convs = [n for n in result.proto.graph.node if n.op_type == "Conv"]
    assert len({made_by[n.input[2]].input[0] for n in convs}) == 2, "two scales, two int32 biases"
    for conv in ("c1", "c2"):
        np.testing.assert_allclose(bias_of(result.proto, conv), b, atol=1e-3)


def test_shared_weight_is_stored_once() -> None:
    result = quantize_checked(*g05.shared_bias_two_convs(), Options(placement="all", bias_correction=False))
    assert sum(t.data_type == onnx.TensorProto.INT8 and len(t.dims) == 4 for t in result.proto.graph.initializer) == 1
    assert not any(t.data_type == onnx.TensorProto.FLOAT and len(t.dims) == 4 for t in result.proto.graph.initializer)


def test_exclude_one_node_shared_weight() -> None:
    result = quantize_checked(*g05.exclude_one_node_shared_weight(), Options(placement="all", exclude=("c1",)))
    c1 = next(n for n in result.proto.graph.node if n.name == "c1")
    assert list(c1.input) == ["x", "w"], "the excluded node reads the float input and weight"
    assert result.sqnr["y"] > 100
    assert result.sqnr["z"] < 100
    assert result.reasons == {"c1": "excluded by 'c1'"}
    verification = result.quantized.verification
    assert verification is not None
    assert verification.quantized_bytes > 32 * 16 * 9 * (4 + 1), "both copies are counted"
    assert verification.quantized_bytes == pytest.approx(len(result.proto.SerializeToString()), rel=0.01)


def test_tied_embedding() -> None:
    result = quantize_checked(*g05.tied_embedding())
    assert {"h", "head"} <= result.quantized.plan.quantized.keys()


def test_same_weight_in_gemms_of_both_orientations() -> None:
    result = quantize_checked(*g05.same_weight_in_gemms_of_both_orientations())
    axes = {}
    made_by = {o: n for n in result.proto.graph.node for o in n.output}
    for node in result.proto.graph.node:
        if node.op_type == "Gemm":
            dq = made_by[node.input[1]]
            axes[node.name] = next((a.i for a in dq.attribute if a.name == "axis"), 1)
    assert axes in ({"a": 1, "b": 0}, {}) or len(set(axes.values())) == 2


def test_weight_shared_by_two_matmuls_with_a_residual_reader() -> None:
    model, feeds = g05.shared_weight_and_residual()
    quantize_checked(model, feeds)


def test_shared_weight_with_one_override_gives_two_copies() -> None:
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y, float[1, 4, 6, 6] z) {
            [c1] y = Conv (x, w)
            [c2] z = Conv (x, w)
        }""",
        w=normal(4, 3, 3, 3),
    )
    options = Options(placement="all", override=(("c2", "weight_bits=4"),))
    result = quantize_checked(model, images(1, 3, 8, 8), options, least=14)
    assert result.sqnr["y"] > result.sqnr["z"] + 10


def test_activation_with_one_override_has_two_quantizers() -> None:
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y, float[1, 4, 6, 6] z) {
            [c1] y = Conv (x, w)
            [c2] z = Conv (x, w2)
        }""",
        w=normal(4, 3, 3, 3),
        w2=normal(4, 3, 3, 3, seed=1),
    )
    options = Options(placement="all", override=(("c2", "act_bits=16"),))
    quantize_checked(model, images(1, 3, 8, 8), options, least=25)


def test_bias_is_also_a_weight() -> None:
    model, feeds = g05.bias_is_also_a_weight()
    quantize_checked(model, feeds)


def test_one_constant_is_operand_and_bias() -> None:
    model, feeds = g05.operand_and_bias()
    quantize_checked(model, feeds)


def test_one_constant_is_operand_and_weight() -> None:
    model, feeds = g05.operand_and_weight()
    quantize_checked(model, feeds)


def test_equal_weights_under_two_names() -> None:
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y, float[1, 4, 6, 6] z) {
            y = Conv (x, w)
            z = Conv (x, v)
        }""",
        w=normal(4, 3, 3, 3),
        v=normal(4, 3, 3, 3),
    )
    result = quantize_checked(model, images(1, 3, 8, 8))
    assert result.sqnr["y"] == pytest.approx(result.sqnr["z"])


def test_a_tensor_read_by_integer_and_float_nodes() -> None:
    quantize_checked(*g05.read_by_integers_and_floats())


def test_a_weight_that_is_computed_from_a_shared_one() -> None:
    """The mean of the weight scales the result: folded, though both come from the same initializer."""
    model, feeds = g05.weight_computed_from_a_shared_one()
    result = quantize_checked(model, feeds)
    assert list(result.quantized.plan.quantized.values()) == ["MatMul", "MatMul"]
