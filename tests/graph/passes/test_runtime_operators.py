"""Operators of onnxruntime in the standard's domain become what they compute, so that every verb takes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxq
from onnxq.dynamic import rewrite
from onnxq.graph.files.load import load
from onnxq.graph.files.onnx_checker import check
from onnxq.graph.files.save import to_proto
from onnxq.graph.traverse import all_nodes
from onnxq.weight_only import quantize_weights
from tests.graph.helpers import Array, build, ops, random, run
from tests.models import f16, f32
from tests.running import open_session

GAMMA = random(8, seed=2)


def norm(opset: int = 17, kind: str = "float", made: str = "y", end: str = "", **constants: Array) -> onnx.ModelProto:
    text = (
        f"g ({kind}[n,3,8] x) => ({kind}[n,3,8] y{', float[n,3,1] s' if 's' in made else ''}) "
        f"{{ [norm] {made} = SimplifiedLayerNormalization <axis: int = -1, epsilon: float = 0.001> (x, gamma) {end} }}"
    )
    return build(text, opset=opset, **constants)


def same(proto: onnx.ModelProto, feeds: dict[str, Array], tolerance: float = 1e-6) -> ir.Model:
    model = load(proto)
    check(model)
    for expected, got in zip(run(proto, feeds), run(to_proto(model), feeds), strict=True):
        assert expected.dtype == got.dtype
        np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)
    return model


@pytest.mark.parametrize("opset", [14, 17, 18, 21])
def test_normalization(opset: int) -> None:
    model = same(norm(opset, made="y, s", gamma=GAMMA), {"x": random(2, 3, 8)})
    assert "SimplifiedLayerNormalization" not in ops(model)
    assert next(n for n in all_nodes(model) if n.name == "norm").outputs[0].name == "y"


@pytest.mark.parametrize("opset", [9, 13, 16])
@pytest.mark.parametrize("made", ["y", "y, m", "y, m, s", "y, , s"])
@pytest.mark.parametrize("bias", ["", ", beta"])
def test_layer_normalization_before_onnx_had_it(opset: int, made: str, bias: str) -> None:
    """As onnxruntime's optimizer writes it into models of whatever opset."""
    others = [f", float[n,3,1] {name}" for name in "ms" if name in made]
    text = (
        f"g (float[n,3,8] x) => (float[n,3,8] y{''.join(others)}) "
        f"{{ [norm] {made} = LayerNormalization <axis: int = -1, epsilon: float = 0.001> (x, gamma{bias}) }}"
    )
    constants = {"gamma": GAMMA, **({"beta": random(8, seed=3)} if bias else {})}
    model = same(build(text, opset=opset, **constants), {"x": random(2, 3, 8)})
    assert "LayerNormalization" not in ops(model)


def test_layer_normalization_of_halves_before_onnx_had_it() -> None:
    text = "g (float16[n,3,8] x) => (float16[n,3,8] y) { y = LayerNormalization <axis: int = 1> (x, gamma, beta) }"
    constants = {name: f16(random(3, 8, seed=seed)) for seed, name in enumerate(("gamma", "beta"))}
    same(build(text, opset=13, **constants), {"x": f16(1000 * random(2, 3, 8))}, 2e-3)


def test_later_layer_normalization_stays() -> None:
    text = "g (float[n,3,8] x) => (float[n,3,8] y) { y = LayerNormalization (x, gamma) }"
    assert ops(load(build(text, opset=17, gamma=GAMMA))) == ["LayerNormalization"]


def test_half_precision_is_computed_in_float32() -> None:
    """Squares of these numbers are beyond float16."""
    same(norm(kind="float16", gamma=f16(GAMMA)), {"x": f16(1000 * random(2, 3, 8))}, 2e-3)


def test_axis_counted_from_the_front() -> None:
    text = (
        "g (float[n,3,8] x) => (float[n,3,8] y) "
        "{ a = Neg(x) \n y = SimplifiedLayerNormalization <axis: int = 1> (a, gamma) }"
    )
    same(build(text, gamma=random(3, 8)), {"x": random(2, 3, 8)})


def test_types_that_the_file_does_not_tell() -> None:
    text = (
        "g (float[n,3,8] x, float[8] w) => (float[n,3,8] y) "
        "{ a = Neg(x) \n b = Abs(w) \n y = SimplifiedLayerNormalization (a, b) }"
    )
    same(build(text), {"x": random(2, 3, 8), "w": random(8)})


@pytest.mark.parametrize(
    "node",
    [
        "Affine <alpha: float = 2.0, beta: float = -1.0>",
        "ImageScaler <scale: float = 2.0, bias: floats = [1.0, 2.0, 3.0]>",
        "ParametricSoftplus <alpha: float = 2.0, beta: float = 3.0>",
        "Scale <scale: float = 0.5>",
        "ScaledTanh <alpha: float = 2.0, beta: float = 3.0>",
    ],
)
def test_old_operators(node: str) -> None:
    same(build(f"g (float[n,3,4,4] x) => (float[n,3,4,4] y) {{ y = {node} (x) }}", opset=9), {"x": random(2, 3, 4, 4)})


def test_later_opsets_have_no_old_operators() -> None:
    made = build("g (float[4] x) => (float[4] y) { [left] y = Affine (x) }", opset=10)
    (found,) = [f for f in onnxq.check(made) if f.level == "error"]
    assert "no opset of ONNX has an operator Affine" in found.what


def test_verbs_take_them(tmp_path: Path) -> None:
    text = (
        "g (float[n,3,8] x) => (float[n,3,8] y) "
        "{ a = SimplifiedLayerNormalization <axis: int = -1> (x, gamma) \n y = MatMul(a, w) }"
    )
    proto = build(text, gamma=f32(np.abs(GAMMA)), w=random(8, 8, seed=3))
    assert not [f for f in onnxq.check(proto) if f.level == "error"]
    assert not [kept for kept in onnxq.plan(proto, backend="openvino").kept_float if kept.op == "MatMul"]
    source = tmp_path / "m.onnx"
    onnx.save(proto, source)
    data = [{"x": random(2, 3, 8, seed=seed)} for seed in range(4)]
    onnxq.quantize(source, data).save(tmp_path / "static.onnx")
    quantize_weights(source, tmp_path / "weights.onnx", bits=8)
    rewrite(source, None, output=tmp_path / "dynamic.onnx", options=None)
    (expected,) = run(proto, data[0])
    for name in ("static", "weights", "dynamic"):
        session = open_session(tmp_path / f"{name}.onnx")
        assert np.abs(session.run(None, data[0])[0] - expected).max() < 0.05 * np.abs(expected).max()
