from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from onnxq.graph.note import Note
from onnxq.graph.passes.unfuse import unfuse
from onnxq.graph.shapes import infer_shapes
from onnxq.options import Options
from onnxq.quantize import quantize
from tests.graph.helpers import Array, apply, build, ops, random
from tests.installed import needs

X = random(2, 3, 8, 8)
W, B = random(4, 3, 3, 3, seed=1), random(4, seed=2)


def fused(text: str, **constants: Array) -> onnx.ModelProto:
    proto = build(f"g {text}", **constants)
    proto.opset_import.add(domain="com.microsoft", version=1)
    proto.graph.node[0].name = "layer"
    return proto


def plain(model: ir.Model) -> list[Note]:
    infer_shapes(model)
    notes = unfuse(model)
    infer_shapes(model)
    return notes


@pytest.mark.parametrize(
    ("function", "params"),
    [
        ("Relu", None),
        ("Tanh", None),
        ("Sigmoid", None),
        pytest.param("HardSwish", None, marks=needs("onnxruntime", "1.24")),
        ("LeakyRelu", [0.3]),
        ("HardSigmoid", [0.2, 0.5]),
        ("Clip", [-0.25, 0.5]),
    ],
)
def test_conv(function: str, params: list[float] | None) -> None:
    given = f", activation_params = [{', '.join(map(str, params))}]" if params else ""
    proto = fused(
        f"""(float[2, 3, 8, 8] x) => (float[2, 4, 4, 4] y) {{
            y = com.microsoft.FusedConv <activation = "{function}", strides = [2, 2], pads = [1, 1, 1, 1]{given}>
                (x, w, b)
        }}""",
        w=W,
        b=B,
    )
    model, notes = apply(plain, proto, {"x": X}, tolerance=1e-5)
    assert ops(model) == ["Conv", function]
    assert model.graph[0].name == "layer"
    assert [note.message for note in notes] == ["written with operators of ONNX: 1 FusedConv"]


def test_conv_with_what_is_added() -> None:
    text = """(float[2, 3, 8, 8] x, float[2, 4, 6, 6] z) => (float[2, 4, 6, 6] y) {
        y = com.microsoft.FusedConv <activation = "Relu"> (x, w, b, z) }"""
    model, _ = apply(plain, fused(text, w=W, b=B), {"x": X, "z": random(2, 4, 6, 6, seed=5)}, tolerance=1e-5)
    assert ops(model) == ["Conv", "Add", "Relu"]


@pytest.mark.parametrize(
    ("function", "numbers"),
    [
        ("Relu", {}),
        ("Tanh", {}),
        ("Softplus", {}),
        ("LeakyRelu", {"alpha": 0.3}),
        ("ThresholdedRelu", {"alpha": 0.3}),
        ("HardSigmoid", {"alpha": 0.3, "beta": 0.4}),
        ("Selu", {"alpha": 1.5, "gamma": 1.2}),
    ],
)
def test_gemm(function: str, numbers: dict[str, float]) -> None:
    given = "".join(f", activation_{name} = {value}" for name, value in numbers.items())
    text = f"""(float[3, 16] x) => (float[3, 5] y) {{
        y = com.microsoft.FusedGemm <activation = "{function}", transB = 1, alpha = 0.5{given}> (x, w, c) }}"""
    proto = fused(text, w=random(5, 16), c=random(5, seed=1))
    model, _ = apply(plain, proto, {"x": random(3, 16, seed=2)}, tolerance=1e-5)
    assert ops(model) == ["Gemm", function]
    assert model.graph[0].attributes.get_float("alpha", 1.0) == 0.5


@pytest.mark.parametrize(("turned", "alpha"), [(0, 1.0), (0, 0.3), (1, 1.0), (1, 0.125)])
def test_product_with_a_constant(turned: int, alpha: float) -> None:
    """Its factor and its transposition are in the constant then; another reader of it keeps its own."""
    text = f"""(float[2, 7, 16] x) => (float[2, 7, 16] y, float[16, 16] z) {{
        y = com.microsoft.FusedMatMul <transB = {turned}, alpha = {alpha}> (x, w)
        z = Neg (w) }}"""
    model, _ = apply(plain, fused(text, w=random(16, 16)), {"x": random(2, 7, 16, seed=3)}, tolerance=1e-5)
    assert ops(model) == ["MatMul", "Neg"]
    assert not model.graph[0].attributes


def test_product_with_transposed_data() -> None:
    text = "(float[2, 16, 7] x) => (float[2, 7, 5] y) { y = com.microsoft.FusedMatMul <transA = 1> (x, w) }"
    model, _ = apply(plain, fused(text, w=random(16, 5)), {"x": random(2, 16, 7, seed=3)}, tolerance=1e-5)
    assert ops(model) == ["Transpose", "MatMul"]


def test_product_that_moves_axes_of_batches_is_left() -> None:
    text = "(float[7, 2, 16] x) => (float[2, 7, 5] y) { y = com.microsoft.FusedMatMul <transBatchA = 1> (x, w) }"
    model, _ = apply(plain, fused(text, w=random(2, 16, 5)), {"x": random(7, 2, 16, seed=3)})
    assert ops(model) == ["FusedMatMul"]


def test_product_of_two_activations_is_left() -> None:
    text = "(float[16, 16] x) => (float[16, 16] y) { y = com.microsoft.FusedMatMul <alpha = 0.5> (x, x) }"
    model, notes = apply(plain, fused(text), {"x": random(16, 16)})
    assert (ops(model), notes) == (["FusedMatMul"], [])


@pytest.mark.parametrize(
    "text",
    [
        "(float[2, 16] x) => (float[2, 16] y) { y = com.microsoft.FusedMatMul <alpha = 0.5> (x, w) }",
        """(float[2, 16] x) => (float[2, 16] y) { y = com.microsoft.FusedGemm <activation = "Relu"> (x, w, c) }""",
    ],
)
def test_patterns_that_name_the_fused_operator_still_name_it(text: str) -> None:
    proto = fused(text, w=random(16, 16), c=random(16))
    op = proto.graph.node[0].op_type
    result = quantize(proto, [{"x": random(2, 16, seed=k)} for k in range(4)], options=Options(exclude=(op,)))
    assert {kept.node: kept.reason for kept in result.plan.kept_float}["layer"] == f"excluded by '{op}'"
