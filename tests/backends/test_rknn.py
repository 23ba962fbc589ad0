"""RKNN: what its loader asks for."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import onnxq
from onnxq import Options
from onnxq.errors import OptionError
from tests.models import build, images, normal
from tests.targets import residual, upsampling


@pytest.mark.parametrize(("graph", "shape"), [(residual, (1, 3, 16, 16)), (upsampling, (1, 4, 8, 8))])
def test_only_standard_operators_of_an_opset_it_reads(graph: object, shape: tuple[int, ...], tmp_path: Path) -> None:
    assert callable(graph)
    made = onnxq.quantize(graph(), images(*shape), backend="rknn", output=tmp_path)
    model = onnx.load(made.files[0])
    assert {o.domain: o.version <= 19 for o in model.opset_import} == {"": True}
    assert not model.functions
    kinds = {t.name: t.data_type for t in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "QuantizeLinear":
            assert kinds[node.input[2]] == onnx.TensorProto.UINT8
        if node.op_type == "DequantizeLinear":
            allowed = (onnx.TensorProto.UINT8, onnx.TensorProto.INT8, onnx.TensorProto.INT32)
            assert kinds[node.input[2]] in allowed


def test_only_8_bits() -> None:
    for options in (Options(weight_bits=4), Options(act_bits=16)):
        with pytest.raises(OptionError, match="rknn has no"):
            onnxq.quantize(residual(), images(1, 3, 16, 16), backend="rknn", options=options)


def test_a_newer_model_is_refused() -> None:
    model = build("(float[1, 8] x) => (float[1, 8] y) { y = Gelu (x) }", opset=20)
    with pytest.raises(OptionError, match="up to opset 19"):
        onnxq.quantize(model, images(1, 8), backend="rknn")


def products() -> onnx.ModelProto:
    return build(
        """(float[4, 8] x) => (float[1, 4, 8] y) {
            [gemm] a = Gemm (x, w)
            [lift] b = Unsqueeze (a, axes)
            [rows] y = MatMul (b, v)
        }""",
        w=normal(8, 8),
        v=normal(8, 8, seed=1),
        axes=onnx.numpy_helper.to_array(onnx.helper.make_tensor("axes", onnx.TensorProto.INT64, [1], [0])),
    )


def test_matrix_products_that_its_builder_hangs_on_quantized_stay_float() -> None:
    kept = {k.node: k.reason for k in onnxq.plan(products(), backend="rknn").kept_float}
    assert "a quantized Gemm of more than one row" in kept["gemm"]
    assert "a quantized MatMul of three axes" in kept["rows"]


def test_what_it_builds_in_float_is_no_fault_of_a_model() -> None:
    assert not [f for f in onnxq.check(products(), backend="rknn") if "gemm" in f.where or "rows" in f.where]


def test_a_layer_normalization_says_its_epsilon(tmp_path: Path) -> None:
    model = build(
        "(float[1, 4, 8] x) => (float[1, 4, 8] y) { n = LayerNormalization (x, s) y = Relu (n) }", s=normal(8), opset=17
    )
    made = onnxq.quantize(model, images(1, 4, 8), backend="rknn", output=tmp_path)
    (node,) = [n for n in onnx.load(made.files[0]).graph.node if n.op_type == "LayerNormalization"]
    assert {a.name: a.f for a in node.attribute if a.name == "epsilon"} == {"epsilon": pytest.approx(1e-5)}
