"""What a model is like once it can be calibrated."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxq
from onnxq import Options
from onnxq.errors import OptionError
from onnxq.spec import NEWEST_OPSET
from onnxq.weight_only import quantize_weights
from tests.contract import infer, sqnr
from tests.installed import needs
from tests.models import build, normal
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


def newest() -> onnx.ModelProto:
    """Operators of opset 28, which onnxruntime runs, and of whose quantizers it has no kernel."""
    text = """(float[1, 3, 16, 16] x) => (float[1, 64] y) {
        c = Conv <pads = [1, 1, 1, 1]> (x, w)
        r = Relu (c)
        s = SpaceToDepth <blocksize = 2> (r)
        g = GlobalAveragePool (s)
        f = Flatten (g)
        y = MatMul (f, m) }"""
    return build(text, opset=28, ir_version=11, w=normal(16, 3, 3, 3), m=normal(64, 64))


@needs("onnx", "1.23")
@needs("onnxruntime", "1.32")
@pytest.mark.parametrize("backend", ["onnxruntime", "tvm", "tensorrt", "snpe"])
def test_a_model_newer_than_the_quantizers_that_onnxruntime_has_is_lowered(tmp_path: Path, backend: str) -> None:
    data = {"x": normal(4, 3, 16, 16)}
    result = onnxq.quantize(newest(), data, backend=backend, output=tmp_path, options=Options(placement="all"))
    written = onnx.load(result.files[0])
    assert written.opset_import[0].version <= NEWEST_OPSET
    assert "Conv" in result.plan.quantized.values()
    assert result.verification is not None and result.verification.outputs["y"].sqnr > 25


@needs("onnx", "1.23")
@needs("onnxruntime", "1.32")
def test_weights_of_a_newest_model_are_stored_in_blocks(tmp_path: Path) -> None:
    onnx.save(newest(), tmp_path / "m.onnx")
    quantize_weights(tmp_path / "m.onnx", tmp_path / "q.onnx")
    feeds = [{"x": normal(1, 3, 16, 16)}]
    written = onnx.load(tmp_path / "q.onnx")
    assert "DequantizeLinear" in {node.op_type for node in written.graph.node}
    exact, found = (infer(model, feeds, optimize=False)["y"] for model in (newest(), written))
    assert sqnr(exact, found) > 15
