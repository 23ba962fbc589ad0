"""What a model is like once it can be calibrated."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxq
from onnxq import Options
from onnxq.errors import OptionError
from tests.models import normal
from tests.targets import residual


def blocks(*, dtype: int) -> onnx.ModelProto:
    """Two calls of one function of Conv and Relu."""
    body = [
        helper.make_node("Conv", ["a", "k"], ["c"], name="fconv"),
        helper.make_node("Relu", ["c"], ["b"], name="frelu"),
    ]
    function = helper.make_function("local", "Block", ["a", "k"], ["b"], body, [helper.make_opsetid("", 17)])
    calls = [
        helper.make_node("Block", ["x", "w"], ["m"], domain="local", name="first"),
        helper.make_node("Block", ["m", "v"], ["y"], domain="local", name="second"),
    ]
    kind = helper.tensor_dtype_to_np_dtype(dtype)
    weights = [numpy_helper.from_array(normal(8, 8, 3, 3, seed=n).astype(kind), name) for n, name in enumerate("wv")]
    graph = helper.make_graph(
        calls,
        "g",
        [helper.make_tensor_value_info("x", dtype, [1, 8, 16, 16])],
        [helper.make_tensor_value_info("y", dtype, [1, 8, 12, 12])],
        weights,
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, opset_imports=opsets, functions=[function], ir_version=8)


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT, TensorProto.FLOAT16])
def test_what_a_function_holds_is_quantized_whatever_its_precision(dtype: int) -> None:
    plan = onnxq.plan(blocks(dtype=dtype), options=Options(placement="all"))
    assert sorted(plan.quantized.values()) == ["Conv", "Conv"]


def test_an_opset_that_was_asked_for_and_the_target_cannot_read_is_the_option_s_fault() -> None:
    with pytest.raises(OptionError, match=r"rknn reads models up to opset 19, 20 was asked for. Leave it out"):
        onnxq.plan(residual(), backend="rknn", options=Options(opset=20))
