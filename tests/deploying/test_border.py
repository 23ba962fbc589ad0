"""Models to deploy that take integers, give them, or compute with them between two quantizers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxq
from tests.contract import infer, sqnr
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


def codes(*shape: int, seed: int = 0) -> np.ndarray:
    return np.clip(np.rint(normal(*shape, seed=seed) * 40), -127, 127).astype(INT8)


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "tvm", "tensorrt", "academic"])
def test_each_reader_of_an_integer_input_has_the_numbers_that_it_had(backend: str) -> None:
    """One convolution reads the input's own grid, another one a coarser one behind it; what gives integers is float
    for its other reader."""
    source = build(
        """(uint8[1, 3, 8, 8] x) => (uint8[1, 4, 8, 8] y, float[1, 4, 8, 8] o, float[1, 3, 8, 8] e,
                                     float[1, 4, 8, 8] k) {
            f = DequantizeLinear (x, s, z)
            wf = DequantizeLinear (w, s, n)
            [fine] c = Conv <pads = [1, 1, 1, 1]> (f, wf)
            [exit] y = QuantizeLinear (c, t, z)
            [sine] o = Sin (c)
            [erf] e = Erf (f)
            q = QuantizeLinear (f, t, z)
            d = DequantizeLinear (q, t, z)
            vf = DequantizeLinear (v, s, n)
            [coarse] k = Conv <pads = [1, 1, 1, 1]> (d, vf)
        }""",
        w=codes(4, 3, 3, 3),
        v=codes(4, 3, 3, 3, seed=1),
        s=np.float32(1 / 64),
        t=np.float32(0.0471),
        n=INT8(0),
        z=UINT8(128),
        opset=17,
    )
    made = onnxq.deploy(source, backend=backend)
    assert set(made.plan.quantized) == {"fine", "coarse"}
    scales = {
        edge.node: float(made.qparams[site.name].scale)
        for site in made.plan.sites
        if site.role == "activation"
        for edge in site.readers
    }
    assert scales["fine"] == 1 / 64 and scales["coarse"] == pytest.approx(0.0471, rel=1e-5)
    feeds = [{"x": np.random.default_rng(0).integers(0, 256, (1, 3, 8, 8)).astype(UINT8)}]
    want, got = (infer(m, feeds, optimize=False) for m in (source, ir.serde.serialize_model(made.rendered())))
    for name in ("o", "e", "k"):
        assert sqnr(want[name], got[name]) > 100, name
    np.testing.assert_array_equal(want["y"][0], got["y"][0])


def test_sums_of_32_bits_are_no_activations() -> None:
    """A DequantizeLinear of int32 rescales a sum: no operator is quantized with its scale."""
    source = build(
        """(int8[2, 6] a, float[2, 6] x) => (float[2, 4] y, float[2, 4] r) {
            i = MatMulInteger (a, m)
            f = DequantizeLinear (i, s)
            [relu] r = Relu (f)
            q = QuantizeLinear (x, s, n)
            d = DequantizeLinear (q, s, n)
            wf = DequantizeLinear (w, s, n)
            [gemm] y = Gemm (d, wf)
        }""",
        m=codes(6, 4),
        w=codes(6, 4, seed=1),
        s=np.float32(1 / 64),
        n=INT8(0),
        opset=17,
    )
    made = onnxq.deploy(source)
    assert "gemm" in made.plan.quantized and "relu" not in made.plan.quantized
    assert not [site for site in made.plan.sites if site.tensor in ("f", "i")]


def test_a_scale_that_is_given_at_each_run_quantizes_nothing() -> None:
    source = build(
        """(uint8[1, 3, 8, 8] x, float s) => (float[1, 4, 8, 8] y, float[1, 3, 8, 8] r) {
            f = DequantizeLinear (x, s, z)
            [relu] r = Relu (f)
            q = QuantizeLinear (r, t, z)
            d = DequantizeLinear (q, t, z)
            wf = DequantizeLinear (w, t, n)
            [conv] y = Conv <pads = [1, 1, 1, 1]> (d, wf)
        }""",
        w=codes(4, 3, 3, 3),
        t=np.float32(1 / 64),
        n=INT8(0),
        z=UINT8(0),
        opset=17,
    )
    made = onnxq.deploy(source)
    assert set(made.plan.quantized) == {"conv"}
    assert not [site for site in made.plan.sites if site.tensor == "f"]
    feeds: list[dict[str, np.ndarray]] = [
        {"x": np.arange(192, dtype=UINT8).reshape(1, 3, 8, 8), "s": np.array(1 / 64, np.float32)}
    ]
    want, got = (infer(m, feeds, optimize=False) for m in (source, ir.serde.serialize_model(made.rendered())))
    for name in ("y", "r"):
        assert sqnr(want[name], got[name]) > 100, name
