from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxq
from onnxq import Options
from onnxq.graph.files.save import to_proto
from onnxq.graph.note import Note
from onnxq.graph.passes.lower_opset import lower_opset
from onnxq.graph.passes.write_out import write_out
from onnxq.graph.shapes import infer_shapes
from tests.graph.helpers import apply, build, ops, random, run
from tests.installed import needs


def written(model: ir.Model) -> list[Note]:
    infer_shapes(model)
    return write_out(model)


def lowered(model: ir.Model) -> list[Note]:
    infer_shapes(model)
    return lower_opset(model, 19) if model.opset_imports[""] > 19 else []


@pytest.mark.parametrize("change", [written, lowered])
@pytest.mark.parametrize("shape", ["2, 6, 5, 4", "N, 6, 5, 4", "N, 6, H, 4", "2, 6, 7"])
def test_group_normalization(shape: str, change: object) -> None:
    assert callable(change)
    text = f"""g (float[{shape}] x) => (float[{shape}] y) {{
        y = GroupNormalization <num_groups = 3, epsilon = 0.001> (x, s, b) }}"""
    proto = build(text, opset=21, ir_version=10, s=random(6), b=random(6, seed=1))
    dims = [2, 6, 5, 4] if shape.count(",") == 3 else [2, 6, 7]
    model, _ = apply(change, proto, {"x": random(*dims)}, tolerance=1e-5)
    assert "InstanceNormalization" in ops(model) and "GroupNormalization" not in ops(model)
    assert ("Shape" in ops(model)) == ("H" in shape)


def test_group_normalization_with_factors_for_each_group() -> None:
    text = "g (float[2, 6, 5] x) => (float[2, 6, 5] y) { y = GroupNormalization <num_groups = 3> (x, s, b) }"
    model = ir.from_proto(build(text, opset=18, s=random(3), b=random(3, seed=1)))
    x = random(2, 6, 5)
    written(model)
    assert ops(model) == ["Reshape", "InstanceNormalization", "Reshape"]
    (y,) = run(to_proto(model), {"x": x})
    groups = x.reshape(2, 3, -1).astype(np.float64)
    normal = (groups - groups.mean(-1, keepdims=True)) / np.sqrt(groups.var(-1, keepdims=True) + 1e-5)
    want = normal * random(3)[:, None] + random(3, seed=1)[:, None]
    np.testing.assert_allclose(y, want.reshape(2, 6, 5), atol=1e-5)


@needs("onnxruntime", "1.24")
@pytest.mark.parametrize("change", [written, lowered])
@pytest.mark.parametrize("alpha", [1.0, 1.5])
def test_swish(alpha: float, change: object) -> None:
    assert callable(change)
    text = f"g (float[4, 8] x) => (float[4, 8] y) {{ y = Swish <alpha = {alpha}> (x) }}"
    model, _ = apply(change, build(text, opset=24, ir_version=11), {"x": random(4, 8)})
    assert ops(model) == ["Sigmoid", "Mul"] if alpha == 1.0 else ["Mul", "Sigmoid", "Mul"]


def test_factors_that_are_computed_stay() -> None:
    text = """g (float[2, 6, 5] x, float[6] s) => (float[2, 6, 5] y) {
        y = GroupNormalization <num_groups = 3> (x, s, s) }"""
    model, notes = apply(written, build(text, opset=21, ir_version=10), {"x": random(2, 6, 5), "s": random(6)})
    assert ops(model) == ["GroupNormalization"] and notes == []


def test_channels_that_are_not_known_stay() -> None:
    """Factors of each channel are brought into the shape of the groups, which needs the number of channels."""
    text = """g (float[2, C, 5] x) => (float[2, C, 5] y) {
        y = GroupNormalization <num_groups = 3> (x, s, b) }"""
    model = ir.from_proto(build(text, opset=21, ir_version=10, s=random(6), b=random(6, seed=1)))
    assert written(model) == [] and ops(model) == ["GroupNormalization"]


@needs("onnx", "1.19")
def test_operators_that_targets_have_kernels_of_stay() -> None:
    """A Gelu, and what another domain calls Swish."""
    text = """<ir_version: 11, opset_import: ["" : 24, "own" : 1]>
    g (float[4, 8] x) => (float[4, 8] y, float[4, 8] z) { y = Gelu (x) s = Swish (x) z = own.Swish (s) }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    (note,) = written(model)
    assert [f"{node.domain}.{node.op_type}" for node in model.graph] == [".Gelu", ".Sigmoid", ".Mul", "own.Swish"]
    assert note.message == "written out: 1 Swish"


@needs("onnx", "1.19")
def test_a_swish_runs_in_integers_where_its_chain_does_and_is_found_by_its_name() -> None:
    text = """g (float[1, 4, 9, 9] x) => (float[1, 4, 5, 5] y) {
        a = Conv (x, w) [act] s = Swish (a) y = Conv (s, w) }"""
    proto = build(text, opset=24, ir_version=11, w=random(4, 4, 3, 3))
    plan = onnxq.plan(proto, options=Options(placement="all"))
    assert sorted(plan.quantized.values()) == ["Conv", "Conv", "Mul", "Sigmoid"] and not plan.kept_float
    for pattern in ("act", "Swish"):
        kept = onnxq.plan(proto, options=Options(placement="all", exclude=[pattern])).kept_float
        assert sorted(k.op for k in kept) == ["Mul", "Sigmoid"]
