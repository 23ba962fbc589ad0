"""Models to deploy that take integers, give them, or compute with them between two quantizers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxq
from tests.models import build, normal

UINT8, INT8 = np.uint8, np.int8


def integers_in_and_out(zero: str = "z") -> onnx.ModelProto:
    """A convolution and a product between a uint8 input and a uint8 output, its weights stored as int8."""
    codes = np.clip(np.rint(normal(4, 3, 3, 3) * 40), -127, 127).astype(INT8)
    matrix = np.clip(np.rint(normal(5, 4, seed=1) * 40), -127, 127).astype(INT8)
    return build(
        f"""(uint8[1, 3, 8, 8] x) => (uint8[1, 5] y) {{
            [entry] f = DequantizeLinear (x, s, {zero})
            wf = DequantizeLinear (w, s, n)
            [conv] c = Conv <pads = [1, 1, 1, 1]> (f, wf)
            [relu] r = Relu (c)
            rq = QuantizeLinear (r, t, u)
            rd = DequantizeLinear (rq, t, u)
            [pool] p = MaxPool <kernel_shape = [8, 8]> (rd)
            pq = QuantizeLinear (p, t, u)
            pd = DequantizeLinear (pq, t, u)
            [flat] l = Flatten (pd)
            lq = QuantizeLinear (l, t, u)
            ld = DequantizeLinear (lq, t, u)
            vf = DequantizeLinear (v, s, n)
            [gemm] g = Gemm <transB = 1> (ld, vf)
            [exit] y = QuantizeLinear (g, t, z)
        }}""",
        w=codes,
        v=matrix,
        s=np.float32(1 / 64),
        t=np.float32(1 / 20),
        n=INT8(0),
        u=UINT8(0),
        z=UINT8(128),
        opset=17,
    )


@pytest.mark.parametrize("backend", ["onnxruntime", "qnn", "openvino", "tvm"])
@pytest.mark.parametrize("zero", ["z", "u"])
def test_all_between_runs_in_integers(backend: str, zero: str, tmp_path: Path) -> None:
    source = integers_in_and_out(zero)
    made = onnxq.deploy(source, backend=backend, output=tmp_path)
    assert set(made.plan.quantized) >= {"conv", "pool", "flat", "gemm"}
    assert made.verification is not None and not made.verification.warnings
    assert made.verification.against_source is not None
    result = onnx.load(made.files[0])
    assert [i.type.tensor_type.elem_type for i in result.graph.input] == [onnx.TensorProto.UINT8]
    assert [o.type.tensor_type.elem_type for o in result.graph.output] == [onnx.TensorProto.UINT8]
    readers = [node for node in result.graph.node if "x" in node.input]
    assert [node.op_type for node in readers] == ["DequantizeLinear"]
    behind = [node.op_type for node in result.graph.node if readers[0].output[0] in node.input]
    assert behind == ["Conv"]
    last = next(node for node in result.graph.node if "y" in node.output)
    before = next(node for node in result.graph.node if last.input[0] in node.output)
    assert (before.op_type, last.op_type) == ("Gemm", "QuantizeLinear")


def test_onnxruntime_computes_the_layers_in_integers(tmp_path: Path) -> None:
    made = onnxq.deploy(integers_in_and_out(), backend="onnxruntime", output=tmp_path)
    found = onnxq.verify(made.files[0])
    kinds = " ".join(found.integer)
    assert "QLinearConv" in kinds and "QGemm" in kinds


def test_an_output_in_integers_is_not_told_as_left_out(tmp_path: Path) -> None:
    made = onnxq.deploy(integers_in_and_out(), backend="openvino", output=tmp_path)
    assert not any(site.tensor == "g" for site in made.plan.sites)
    assert made.verification is not None and made.verification.warnings == ()


def test_integers_that_are_moved_keep_their_grid(tmp_path: Path) -> None:
    """Between the two halves of a pair is a Transpose of integers."""
    source = build(
        """(float[1, 8, 8, 3] x) => (float[1, 4, 8, 8] y) {
            q = QuantizeLinear (x, s, z)
            m = Transpose <perm = [0, 3, 1, 2]> (q)
            f = DequantizeLinear (m, s, z)
            wf = DequantizeLinear (w, s, n)
            [conv] c = Conv <pads = [1, 1, 1, 1]> (f, wf)
            cq = QuantizeLinear (c, t, z)
            y = DequantizeLinear (cq, t, z)
        }""",
        w=np.clip(np.rint(normal(4, 3, 3, 3) * 40), -127, 127).astype(INT8),
        s=np.float32(1 / 64),
        t=np.float32(1 / 20),
        n=INT8(0),
        z=UINT8(128),
        opset=17,
    )
    made = onnxq.deploy(source, backend="qnn", output=tmp_path)
    assert "conv" in made.plan.quantized
    agreed = made.verification.against_source if made.verification is not None else None
    assert agreed is not None and agreed.worst is not None and agreed.worst[1].sqnr > 100


def test_another_signedness_has_a_pair_of_its_own() -> None:
    """A target of int8 reads a uint8 input through a pair of its own, with the same numbers."""
    source = build(
        """(uint8[1, 3, 8, 8] x) => (float[1, 4, 8, 8] y) {
            f = DequantizeLinear (x, s, z)
            wf = DequantizeLinear (w, s, n)
            [conv] y = Conv <pads = [1, 1, 1, 1]> (f, wf)
        }""",
        w=np.clip(np.rint(normal(4, 3, 3, 3) * 40), -127, 127).astype(INT8),
        s=np.float32(1 / 64),
        n=INT8(0),
        z=UINT8(128),
        opset=17,
    )
    made = onnxq.deploy(source, backend="tensorrt")
    assert "conv" in made.plan.quantized
    own = next(made.qparams[site.name] for site in made.plan.sites if site.tensor == "f")
    assert (own.spec.signed, int(own.zero_point), float(own.scale)) == (True, 0, 1 / 64)
    behind = [node.op_type for node in made.qdq().graph if node.inputs[0] is not None and node.inputs[0].name == "f"]
    assert behind == ["QuantizeLinear"]
