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


def test_matrix_products_that_its_builder_hangs_on_stay_float() -> None:
    model = build(
        """(float[4, 8] x) => (float[1, 4, 8] y) {
            [gemm] a = Gemm (x, w)
            [lift] b = Unsqueeze (a, axes)
            [rows] y = MatMul (b, v)
        }""",
        w=normal(8, 8),
        v=normal(8, 8, seed=1),
        axes=onnx.numpy_helper.to_array(onnx.helper.make_tensor("axes", onnx.TensorProto.INT64, [1], [0])),
    )
    kept = {k.node: k.reason for k in onnxq.plan(model, backend="rknn").kept_float}
    assert "one row" in kept["gemm"] and "three axes" in kept["rows"]
    found = "\n".join(f"{f.where}: {f.what}" for f in onnxq.check(model, backend="rknn"))
    assert "gemm" in found and "rows" in found
