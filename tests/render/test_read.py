"""Reading a quantized model back: the same sites and numbers, and the same model when it is rendered again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxq
from onnxq import Options, Quantized
from onnxq.session import Session
from tests.models import build, f32, images, normal
from tests.test_planner import concat, conv_relu, recurrent, residual


def equal_outputs(a: object, b: object, feeds: dict[str, np.ndarray]) -> None:
    left = Session(a, optimize=False).run(feeds)  # type: ignore[arg-type]
    right = Session(b, optimize=False).run(feeds)  # type: ignore[arg-type]
    assert left.keys() == right.keys()
    for name in left:
        np.testing.assert_array_equal(left[name], right[name])


@pytest.mark.parametrize("fmt", ["qdq", "fake-quantize"])
@pytest.mark.parametrize("make", [conv_relu, residual, concat, recurrent])
def test_round_trip(make: object, fmt: str, tmp_path: Path) -> None:
    model = make()  # type: ignore[operator]
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    feeds = images(*shape)
    path = tmp_path / "q.onnx"
    quantized = onnxq.quantize(model, feeds, output=path, options=Options(placement="all", format=fmt))  # type: ignore[arg-type]
    back = onnxq.read(path)
    assert isinstance(back, Quantized)
    assert len(back.plan.sites) == len(quantized.plan.sites)
    found = {s.tensor: back.qparams[s.name] for s in back.plan.sites}
    for site in quantized.plan.sites:
        wanted = quantized.qparams[site.name]
        np.testing.assert_array_equal(found[site.tensor].scale.reshape(-1), wanted.scale.reshape(-1))
        np.testing.assert_array_equal(found[site.tensor].zero_point.reshape(-1), wanted.zero_point.reshape(-1))
    equal_outputs(path, back.qdq(), feeds[0])


def test_the_float_graph_holds_no_quantizer(tmp_path: Path) -> None:
    path = tmp_path / "q.onnx"
    onnxq.quantize(residual(), images(1, 16, 8, 8), output=path, options=Options(placement="all"))
    back = onnxq.read(path)
    ops = {n.op_type for n in back.model.graph.all_nodes()}
    assert not ops & {"QuantizeLinear", "DequantizeLinear", "FakeQuantize", "Cast"}


def test_float_weight_behind_a_pair_as_training_tools_write_it() -> None:
    model = build(
        """(float[2, 8] x) => (float[2, 4] y) {
            xq = QuantizeLinear (x, s, z)
            xd = DequantizeLinear (xq, s, z)
            wq = QuantizeLinear <axis = 1> (w, ws, wz)
            wd = DequantizeLinear <axis = 1> (wq, ws, wz)
            y = MatMul (xd, wd)
        }""",
        s=f32(0.05),
        z=np.uint8(120),
        w=normal(8, 4),
        ws=f32([0.01, 0.02, 0.03, 0.04]),
        wz=np.zeros(4, np.int8),
    )
    back = onnxq.read(model)
    roles = {s.tensor: s.role for s in back.plan.sites}
    assert roles == {"x": "activation", "w": "weight"}
    equal_outputs(model.SerializeToString(), back.qdq(), images(2, 8)[0])


def test_a_model_of_onnxruntimes_quantizer(tmp_path: Path) -> None:
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.rest = iter(images(1, 16, 8, 8))

        def get_next(self) -> object:
            return next(self.rest, None)

    source, path = tmp_path / "f.onnx", tmp_path / "q.onnx"
    onnx.save(conv_relu(), source)
    quantize_static(source, path, Reader(), per_channel=True, weight_type=QuantType.QInt8)
    back = onnxq.read(path)
    assert sum(s.role == "weight" for s in back.plan.sites) == 2
    assert not [n for n in back.model.graph.all_nodes() if n.op_type == "DequantizeLinear"]
    equal_outputs(path, back.qdq(), images(1, 16, 8, 8)[0])


def test_what_is_no_pair_stays_and_is_named() -> None:
    graph = helper.make_graph(
        [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"], name="lone")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, [2])],
        [numpy_helper.from_array(np.float32(0.1), "s"), numpy_helper.from_array(np.uint8(3), "z")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    back = onnxq.read(model)
    assert not back.plan.sites
    assert any("lone" in note for note in back.notes)
