"""A weight that is transposed, reshaped or cut before it is read: its scales move with it."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxq
from onnxq.spec import PerChannel, PerTensor
from tests.contract import infer, sqnr
from tests.models import build, f32

ROWS, COLUMNS = 6, 4
CODES = np.random.default_rng(0).integers(-127, 128, (ROWS, COLUMNS)).astype(np.int8)
SCALES = np.linspace(0.001, 0.02, ROWS).astype(np.float32)
GRIDS = {"s": f32(0.03), "t": f32(0.15), "z": np.int8(0), "sw": SCALES, "zw": np.zeros(ROWS, np.int8)}
X = "xq = QuantizeLinear (x, s, z)  xd = DequantizeLinear (xq, s, z)"
W = "wd = DequantizeLinear <axis = 0> (w, sw, zw)"
Y = "mq = QuantizeLinear (m, t, z)  y = DequantizeLinear (mq, t, z)"


def linear(weight: str = W, **constants: np.ndarray) -> onnx.ModelProto:
    """What exporters of PyTorch make of a linear layer on data of three axes."""
    return build(
        f"(float[2, 3, {COLUMNS}] x) => (float[2, 3, {ROWS}] y) {{ {X} {weight} v = Transpose <perm = [1, 0]> (wd)"
        f" m = MatMul (xd, v) {Y} }}",
        **{**GRIDS, "w": CODES, **constants},
    )


def with_weight(body: str, size: str, **constants: np.ndarray) -> onnx.ModelProto:
    """Nodes that make ``y`` of ``xd`` (2, 3, 4) and ``wd`` (6, 4), with a scale for each row."""
    text = f"(float[2, 3, {COLUMNS}] x) => (float[{size}] y) {{ {X} {W} {body} }}"
    return build(text, opset=18, **{**GRIDS, "w": CODES, **constants})


def feeds(source: onnx.ModelProto) -> list[dict[str, np.ndarray]]:
    size = [dim.dim_value for dim in source.graph.input[0].type.tensor_type.shape.dim]
    return [{"x": np.random.default_rng(k).normal(size=size).astype(np.float32)} for k in range(4)]


def same(source: onnx.ModelProto, result: ir.Model, least: float = 100.0) -> None:
    given, made = (infer(m, feeds(source), optimize=False)["y"] for m in (source, ir.serde.serialize_model(result)))
    assert sqnr(given, made) > least


FORMS = {
    "stored": {},
    "float": {
        "weight": "wq = QuantizeLinear <axis = 0> (w, sw, zw)  wd = DequantizeLinear <axis = 0> (wq, sw, zw)",
        "w": CODES.astype(np.float32) * SCALES[:, None],
    },
    "one scale": {"weight": "wd = DequantizeLinear (w, sw, zw)", "sw": f32(0.01), "zw": np.int8(0)},
    "square": {"w": CODES[:COLUMNS], "sw": SCALES[:COLUMNS], "zw": np.zeros(COLUMNS, np.int8)},
}


@pytest.mark.parametrize("form", FORMS)
def test_the_transposed_weight_is_the_constant_and_its_scales_lie_on_its_other_axis(form: str) -> None:
    source = linear(**FORMS[form])
    read = onnxq.read(source)
    assert [node.op_type for node in read.model.graph] == ["MatMul", "Identity"][: len(read.model.graph)]
    (site,) = [s for s in read.plan.sites if s.role == "weight"]
    assert site.tensor == "v"
    assert site.spec.granularity == (PerTensor() if form == "one scale" else PerChannel(1))
    same(source, read.qdq())


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "academic", "tensorrt", "qnn"])
@pytest.mark.parametrize("form", FORMS)
def test_every_target_takes_the_layer_over(form: str, backend: str) -> None:
    source = linear(**FORMS[form])
    made = onnxq.deploy(source, backend=backend)
    assert "MatMul" in made.plan.quantized.values()
    result = made.rendered()
    assert "Transpose" not in {node.op_type for node in result.graph}
    same(source, result, 25.0)


def test_scales_follow_a_reshape_that_keeps_their_axis() -> None:
    body = "xt = Transpose <perm = [0, 2, 1]> (xd)  v = Reshape (wd, sh)  y = Conv (xt, v)"
    follows(with_weight(body, "2, 6, 3", sh=np.array([6, 4, 1])), list(range(ROWS)), axis=0)


def test_scales_follow_a_cut() -> None:
    body = "u = Slice (wd, from, to, axis, step)  v = Transpose <perm = [1, 0]> (u)  y = MatMul (xd, v)"
    cut = {"from": np.array([1]), "to": np.array([6]), "axis": np.array([0]), "step": np.array([2])}
    follows(with_weight(body, "2, 3, 3", **cut), [1, 3, 5], axis=1)


def test_scales_follow_one_more_axis() -> None:
    body = "u = Unsqueeze (wd, first)  v = Transpose <perm = [0, 2, 1]> (u)  y = MatMul (xd, v)"
    follows(with_weight(body, "2, 3, 6", first=np.array([0])), list(range(ROWS)), axis=2)


def follows(source: onnx.ModelProto, rows: list[int], axis: int) -> None:
    read = onnxq.read(source)
    (site,) = [s for s in read.plan.sites if s.role == "weight"]
    assert site.tensor == "v"
    assert site.spec.granularity == PerChannel(axis)
    np.testing.assert_array_equal(read.qparams[site.name].scale, SCALES[rows])
    same(source, read.qdq())


def test_each_part_of_a_weight_that_is_cut_has_the_scales_of_its_rows() -> None:
    body = """u1, u2 = Split <axis = 0, num_outputs = 2> (wd)
        v1 = Transpose <perm = [1, 0]> (u1)  v2 = Transpose <perm = [1, 0]> (u2)
        y1 = MatMul (xd, v1)  y2 = MatMul (xd, v2)  y = Sub (y1, y2)"""
    source = with_weight(body, "2, 3, 3")
    read = onnxq.read(source)
    found = {s.tensor: read.qparams[s.name].scale for s in read.plan.sites if s.role == "weight"}
    np.testing.assert_array_equal(found["v1"], SCALES[:3])
    np.testing.assert_array_equal(found["v2"], SCALES[3:])
    same(source, read.qdq())


def test_what_else_reads_the_weight_reads_it_as_it_is() -> None:
    body = "v = Transpose <perm = [1, 0]> (wd)  m = MatMul (xd, v)  g = Gather (wd, one)  n = Concat <axis = 1> (g, g)"
    source = with_weight(body + "  p = ReduceSum (g)  y = Add (m, p)", "2, 3, 6", one=np.array([[1]]))
    read = onnxq.read(source)
    grains = {s.tensor: s.spec.granularity for s in read.plan.sites if s.role != "activation"}
    assert grains.pop("v") == PerChannel(1)
    assert list(grains.values()) == [PerChannel(0)]
    same(source, read.qdq())


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "academic"])
def test_a_layer_whose_weight_is_reshaped_across_its_scales_stays_float(backend: str) -> None:
    body = f"""v = Reshape (wd, sh)  m = MatMul (xd, v)  {Y.replace("y =", "d =")}
        r = Relu (xd)  rq = QuantizeLinear (r, t, z)  e = DequantizeLinear (rq, t, z)
        vd = DequantizeLinear (v2, t, z)  f = MatMul (e, vd)  y = Add (d, f)"""
    source = with_weight(body, "2, 3, 6", sh=np.array([4, 6]), v2=CODES.reshape(4, 6) // 16)
    read = onnxq.read(source)
    assert any("spreads the scales of" in note for note in read.notes)
    same(source, read.qdq())
    made = onnxq.deploy(source, backend=backend)
    assert len([op for op in made.plan.quantized.values() if op == "MatMul"]) == 1
    same(source, made.rendered(), 30.0)
