"""The way back from QOperators: onnxq's own, and those of other tools."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnxruntime.quantization import QuantFormat, quantize_static

import onnxq
from tests.contract import infer
from tests.models import build, f32, feeds_for
from tests.reader import Reader
from tests.render.nets import NETS, kinds, quantized
from tests.targets import residual


@pytest.mark.parametrize("target", ["onnx_qnn", "onnxruntime"])
@pytest.mark.parametrize("net", NETS)
def test_read_back_and_written_again_it_is_the_same(net: str, target: str) -> None:
    text, arrays, _ = NETS[net]
    q = quantized(text, arrays, target)
    model = ir.to_proto(q.rendered())
    again = onnxq.read(model, backend=target)
    assert not again.notes
    assert "Q" not in {node.op_type[0] for node in again.model.graph}, "a float model"
    back = ir.to_proto(replace(again, format="qoperator").rendered())
    assert sorted(kinds(back)) == sorted(kinds(model))
    assert {n.name for n in back.graph.node} == {n.name for n in model.graph.node}
    feeds = feeds_for(model, samples=1)
    np.testing.assert_array_equal(infer(back, feeds, optimize=False)["y"], infer(model, feeds, optimize=False)["y"])


def test_qoperators_of_another_tool_are_read() -> None:
    """A model by hand: a QLinearAdd of tensors with scales of their own, and a QLinearConv with channels last."""
    model = build(
        """(float[1, 2, 4, 4] x) => (float[1, 2, 4, 4] y) {
            q = QuantizeLinear (x, s, z)
            a = com.microsoft.QLinearAdd (q, s, z, q, s, z, t, u)
            y = DequantizeLinear (a, t, u)
        }""",
        domains={"com.microsoft": 1},
        s=f32(0.05),
        z=np.uint8(100),
        t=f32(0.1),
        u=np.uint8(90),
    )
    q = onnxq.read(model)
    assert [node.op_type for node in q.model.graph] == ["Add"]
    assert {name: int(p.zero_point) for name, p in q.qparams.items()} == {"x": 100, "y": 90}
    assert [float(q.qparams[name].scale) for name in "xy"] == pytest.approx([0.05, 0.1])
    model.graph.node[1].attribute.append(onnx.helper.make_attribute("channels_last", 1))
    assert any("has channels last: left as it is" in note for note in onnxq.read(model).notes)


def test_integers_of_one_grid_that_a_concat_joins_are_read() -> None:
    model = build(
        """(float[1, 2, 4, 4] x) => (float[1, 4, 4, 4] y) {
            q = QuantizeLinear (x, s, z)
            m = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (q)
            c = Concat <axis = 1> (q, m)
            y = DequantizeLinear (c, s, z)
        }""",
        s=f32(0.05),
        z=np.uint8(100),
    )
    q = onnxq.read(model)
    assert [node.op_type for node in q.model.graph] == ["MaxPool", "Concat"] and not q.notes
    feeds, back = feeds_for(model, samples=1), ir.to_proto(q.rendered())
    np.testing.assert_array_equal(infer(back, feeds, optimize=False)["y"], infer(model, feeds, optimize=False)["y"])


@pytest.mark.parametrize("read", [True, False])
def test_indices_of_a_pool_of_integers_stay_indices(read: bool) -> None:
    unpool = "up = MaxUnpool <kernel_shape = [2, 2], strides = [2, 2]> (p, i)"
    model = build(
        f"""(float[1, 2, 4, 4] x) => (float[1, 2, h, w] y) {{
            q = QuantizeLinear (x, s, z)
            m, i = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (q)
            p = DequantizeLinear (m, s, z)
            {unpool if read else "up = Identity (p)"}
            y = Relu (up)
        }}""",
        s=f32(0.05),
        z=np.uint8(100),
    )
    q = onnxq.read(model)
    assert q.model.graph[0].op_type == "MaxPool" and len(q.qparams) == 2
    feeds, back = feeds_for(model, samples=1), ir.to_proto(q.qdq())
    onnx.checker.check_model(back, full_check=True)
    np.testing.assert_array_equal(infer(back, feeds, optimize=False)["y"], infer(model, feeds, optimize=False)["y"])


def test_what_onnxruntime_quantized_is_read_bit_for_bit(tmp_path: Path) -> None:
    feeds = feeds_for(residual(), samples=2)
    onnx.save(residual(), tmp_path / "float.onnx")
    form = QuantFormat.QOperator
    quantize_static(tmp_path / "float.onnx", tmp_path / "q.onnx", Reader(feeds), quant_format=form, per_channel=True)
    given = onnx.load(tmp_path / "q.onnx")
    q = onnxq.read(given)
    assert not q.notes and kinds(given).count("QLinearConv") == 3
    assert {"Conv", "Add", "Gemm"} <= {node.op_type for node in q.model.graph}
    np.testing.assert_array_equal(
        infer(ir.to_proto(q.qdq()), feeds, optimize=False)["y"], infer(given, feeds, optimize=False)["y"]
    )
