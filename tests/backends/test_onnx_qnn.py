"""The target of QLinear operators: integers from the first quantizer to the last, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import onnxq
from onnxq import Options, Override
from onnxq.errors import OptionError
from tests.contract import infer, sqnr
from tests.models import build, feeds_for, images, verified_sqnr
from tests.targets import residual


def test_a_residual_net_is_integers_from_end_to_end(tmp_path: Path) -> None:
    feeds = images(1, 3, 16, 16, samples=4)
    q = onnxq.quantize(residual(), feeds, backend="onnx_qnn", output=tmp_path)
    (path,) = q.files
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    ops = [node.op_type for node in model.graph.node]
    assert ops == [
        "QuantizeLinear",
        *["QLinearConv"] * 3,
        "QLinearAdd",
        "MaxPool",
        "QLinearGlobalAveragePool",
        "Flatten",
        "QGemm",
        "DequantizeLinear",
    ]
    kinds = {t.name: t.data_type for t in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "QLinearConv":
            assert kinds[node.input[3]] == kinds[node.input[5]] == TensorProto.UINT8
            assert [d.dims for d in model.graph.initializer if d.name == node.input[4]] == [[]], "a scale a tensor"
            assert len(node.input) == 8 or kinds[node.input[8]] == TensorProto.INT32
    assert [o.type.tensor_type.elem_type for o in model.graph.output] == [TensorProto.FLOAT]
    assert set(kinds.values()) <= {TensorProto.UINT8, TensorProto.INT32, TensorProto.FLOAT}


def test_the_check_runs_the_artifact_itself(tmp_path: Path) -> None:
    """Its error is that of the file, and not of the QDQ model."""
    feeds = images(1, 3, 16, 16, samples=4)
    q = onnxq.quantize(residual(), feeds, backend="onnx_qnn", output=tmp_path / "m.onnx")
    want = infer(residual(), feeds, optimize=True)["y"]
    got = infer(onnx.load(tmp_path / "m.onnx"), feeds, optimize=True)["y"]
    assert q.verification is not None
    assert q.verification.outputs["y"].sqnr == pytest.approx(sqnr(want, got), abs=1e-3)
    assert sqnr(want, got) > 20


def test_what_mqbench_gets_wrong_is_right(tmp_path: Path) -> None:
    """Relu folded into the quantizer, an Add of scalars' scales."""
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 3, 8, 8] y) {
            a = Conv <pads = [1, 1, 1, 1]> (x, w, b)
            r = Relu (a)
            y = Add (r, x)
        }""",
        w=np.ones((3, 3, 3, 3), np.float32),
        b=np.full(3, -0.4, np.float32),
    )
    feeds = images(1, 3, 8, 8, samples=4)
    onnxq.quantize(model, feeds, backend="onnx_qnn", output=tmp_path / "m.onnx")
    made = onnx.load(tmp_path / "m.onnx")
    add = next(n for n in made.graph.node if n.op_type == "QLinearAdd")
    shapes = {t.name: list(t.dims) for t in made.graph.initializer}
    assert all(shapes[add.input[k]] == [] for k in (1, 2, 4, 5, 6, 7))
    assert sqnr(infer(model, feeds, optimize=False)["y"], infer(made, feeds, optimize=False)["y"]) > 30


def test_symmetric_activations_are_uint8_with_128_in_the_middle() -> None:
    model, feeds = residual(), feeds_for(residual())
    made = onnxq.quantize(
        model, feeds, backend="onnx_qnn", options=Options(override=(("*", Override(symmetric=True)),))
    )
    activations = [made.qparams[s.name] for s in made.plan.sites if s.role == "activation"]
    assert activations and all(not qp.spec.signed and qp.zero_point == 128 for qp in activations)
    assert "QLinearConv" in {node.op_type for node in made.rendered().graph}
    for options in (Options(per_channel=True), Options(override=(("*", Override(per_channel=True)),))):
        with pytest.raises(OptionError, match="one scale for all of a weight"):
            onnxq.quantize(model, [], backend="onnx_qnn", options=options)


@pytest.mark.parametrize("form", ["qdq", "fake-quantize"])
def test_other_formats_hold_the_same_numbers(form: str) -> None:
    feeds = images(1, 3, 16, 16, samples=4)
    made = [
        onnxq.quantize(residual(), feeds, backend="onnx_qnn", options=Options(format=name))
        for name in ("qoperator", form)
    ]
    assert made[0].qparams == made[1].qparams


@pytest.mark.parametrize("target", ["onnx_qnn", "onnxruntime"])
@pytest.mark.parametrize(
    "attributes", ["dilations = [2, 2]", "ceil_mode = 1, count_include_pad = 1, strides = [2, 2], pads = [1, 0, 0, 1]"]
)
def test_average_pools_that_onnxruntime_has_no_right_kernel_for(target: str, attributes: str) -> None:
    """The first would not load, the second give other numbers."""
    model = build(
        f"""(float[1, 4, 11, 12] x) => (float[n, c, h, w] y) {{
            a = Conv (x, k)
            y = AveragePool <kernel_shape = [3, 3], {attributes}> (a)
        }}""",
        opset=19,
        ir_version=9,
        k=np.random.default_rng(0).standard_normal((4, 4, 1, 1)).astype(np.float32),
    )
    q = onnxq.quantize(model, images(1, 4, 11, 12), backend=target, options=Options(placement="all"))
    assert list(q.plan.quantized.values()) == ["Conv"]
    assert verified_sqnr(q) > 30
