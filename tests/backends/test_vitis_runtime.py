"""AMD's own rules for the NPU (amd-quark) find nothing to change in what the XINT8 target writes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onnxq
from onnxq.runtimes import child
from onnxq.runtimes.vitis import RUNTIME
from tests.backends.test_vitis import DATA, net
from tests.models import build, feeds_for, normal

WHY_NOT = child.missing(RUNTIME)
pytestmark = [pytest.mark.runtime, pytest.mark.skipif(WHY_NOT is not None, reason=f"amd-quark: {WHY_NOT}")]


def far_apart() -> onnx.ModelProto:
    """Weights, biases and branches of very different sizes: every limit is reached."""
    return build(
        """(float[1, 4, 8, 8] x) => (float[1, 8, 1, 1] y) {
            a = Conv <pads = [1, 1, 1, 1]> (x, tiny, big)
            b = Conv <pads = [1, 1, 1, 1]> (x, large, small)
            l = LeakyRelu <alpha = 0.3> (b)
            s = Add (a, l)
            d = Sub (l, a)
            h = HardSwish (d)
            m = Mul (s, h)
            p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (m)
            q = AveragePool <kernel_shape = [2, 2], strides = [2, 2]> (h)
            c = Concat <axis = 1> (p, q)
            g = Sigmoid (c)
            z = Mul (c, g)
            y = GlobalAveragePool (z)
        }""",
        tiny=normal(4, 4, 3, 3, scale=1e-6),
        big=normal(4, scale=30.0),
        large=normal(4, 4, 3, 3, seed=1, scale=50.0),
        small=normal(4, seed=1, scale=1e-5),
    )


def boxes_and_scores() -> onnx.ModelProto:
    """A Concat has one position, and a HardSigmoid writes at none below 7: the rules of both cannot hold at once."""
    return build(
        """(float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) {
            b = Conv (x, large)
            s = Sigmoid (x)
            c = Concat <axis = 1> (b, s)
            y = Conv (c, w)
        }""",
        large=normal(4, 4, 1, 1, scale=20.0),
        w=normal(4, 8, 1, 1),
    )


@pytest.mark.parametrize("make", [net, far_apart, boxes_and_scores])
def test_quark_changes_nothing(make: object, tmp_path: Path) -> None:
    model = make()  # type: ignore[operator]
    feeds = DATA if make is net else feeds_for(model)
    result = onnxq.quantize(model, feeds, backend="vitis", output=tmp_path / "m.onnx")
    found = child.examine(RUNTIME, tmp_path / "m.onnx", feeds[:2])
    assert found.remarks == ()
    assert np.isfinite(found.outputs[0]["y"]).all()
    if make is far_apart:
        assert any("moved from" in note for note in result.notes), "a limit was meant to be reached"


def test_quark_notices_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnxq.quantize(net(), DATA, backend="vitis", output=path)
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        if tensor.name == "w1_scale":
            tensor.CopyFrom(numpy_helper.from_array(np.float32(2.0**20), "w1_scale"))
        if tensor.name == "m_factor":
            tensor.CopyFrom(numpy_helper.from_array(np.float32(1.5), "m_factor"))
        if tensor.name == "w3_scale":
            tensor.CopyFrom(numpy_helper.from_array(np.float32(0.3), "w3_scale"))
    for node in model.graph.node:
        if node.op_type == "LeakyRelu":
            node.attribute[0].f = 0.1
    onnx.save(model, path)
    remarks = "\n".join(child.examine(RUNTIME, path, DATA[:1]).remarks)
    for what in ("w1_scale", "factor 1.5", "LeakyRelu", "not a power of two"):
        assert what in remarks


def test_quark_notices_quantizers_between(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    model = build(
        """(float[1, 3, 12, 12] x) => (float[1, 8, 12, 12] y) {
            [conv] a = Conv <pads = [1, 1, 1, 1]> (x, w)
            [act] y = Relu (a)
        }""",
        w=normal(8, 3, 3, 3),
    )
    onnxq.quantize(model, DATA, backend="vitis", output=path)
    assert not child.examine(RUNTIME, path, DATA[:1]).remarks
    written = onnx.load(path)
    relu = next(n for n in written.graph.node if n.op_type == "Relu")
    scale, zero = "y_scale", "y_zero_point"
    first = onnx.helper.make_node("QuantizeLinear", [relu.input[0], scale, zero], ["a_quantized"], name="first")
    second = onnx.helper.make_node("DequantizeLinear", ["a_quantized", scale, zero], ["a_again"], name="second")
    relu.input[0] = "a_again"
    place = list(written.graph.node).index(relu)
    written.graph.node.insert(place, second)
    written.graph.node.insert(place, first)
    onnx.save(written, path)
    assert "first" in "\n".join(child.examine(RUNTIME, path, DATA[:1]).remarks)


def test_a_pad_and_the_mean_pool_behind_it_are_computed_together(tmp_path: Path) -> None:
    """No quantizer stands between, and what the Pad reads has the position of the pool's output."""
    model = build(
        """(float[1, 4, 8, 8] x) => (float[1, 3, 7, 7] y) {
            r = Relu (x)
            p = Pad <mode = "reflect"> (r, sides)
            a = AveragePool <kernel_shape = [4, 4]> (p)
            y = Conv (a, w)
        }""",
        sides=np.array([0, 0, 1, 1, 0, 0, 1, 1]),
        w=normal(3, 4, 1, 1),
    )
    feeds = feeds_for(model)
    path = onnxq.quantize(model, feeds, backend="vitis", output=tmp_path / "m.onnx").files[0]
    assert child.examine(RUNTIME, path, feeds[:1]).remarks == ()


def test_sums_of_products_are_those_of_the_npu_on_every_processor(tmp_path: Path) -> None:
    """Its accumulators have 32 bits; kernels of x86 without VNNI add pairs of products in 16, too few."""
    model = build("(float[1, 64] x) => (float[1, 8] y) { y = MatMul (x, w) }", w=np.full((64, 8), 0.98, np.float32))
    feeds = [{"x": np.random.default_rng(k).uniform(0.9, 0.98, (1, 64)).astype(np.float32)} for k in range(8)]
    path = onnxq.quantize(model, feeds, backend="vitis", output=tmp_path / "m.onnx").files[0]
    agreement = onnxq.verify(path, feeds, backend="vitis")
    assert not agreement.faults()
    assert agreement.outputs["y"].sqnr > 60.0
