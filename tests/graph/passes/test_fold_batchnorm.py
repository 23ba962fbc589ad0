from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxq.graph.files.load import load
from onnxq.graph.files.save import to_proto
from onnxq.graph.layer import Channels, Layer
from onnxq.graph.note import Note
from onnxq.graph.passes.constants import fold_constants, lift_constants
from onnxq.graph.passes.fold_batchnorm import fold_batchnorm
from onnxq.graph.shapes import infer_shapes
from tests.graph.helpers import Array, apply, build, ops, random, run
from tests.models import f32

TOLERANCE = 2e-6


def parameters(channels: int, seed: int = 5) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {
        "s": rng.normal(size=channels).astype(np.float32),
        "b": rng.normal(size=channels).astype(np.float32),
        "mean": rng.normal(size=channels).astype(np.float32),
        "var": rng.uniform(0.1, 2, channels).astype(np.float32),
    }


BN = "BatchNormalization<epsilon = 1e-3>(c, s, b, mean, var)"


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("conv", "x_shape", "w_shape", "channels"),
    [
        ("Conv<pads = [1,1,1,1]>", (2, 4, 5, 5), (6, 4, 3, 3), 6),
        ("Conv<group = 2>", (2, 4, 5, 5), (6, 2, 3, 3), 6),
        ("Conv<group = 4>", (2, 4, 5, 5), (4, 1, 3, 3), 4),
        ("Conv", (2, 4, 9), (6, 4, 3), 6),
        ("ConvTranspose<strides = [2,2]>", (2, 4, 5, 5), (4, 6, 3, 3), 6),
        ("ConvTranspose<strides = [2,2], group = 2, output_padding = [1,1]>", (2, 4, 5, 5), (4, 3, 3, 3), 6),
    ],
)
def test_after_convolutions(
    conv: str, x_shape: tuple[int, ...], w_shape: tuple[int, ...], channels: int, bias: bool
) -> None:
    dims = ",".join(map(str, x_shape))
    text = f"g (float[{dims}] x) => (float y) {{ c = {conv}(x, w{', k' if bias else ''}) \n y = {BN} }}"
    text = text.replace("float y", "float[" + ",".join("abcd"[: len(x_shape)]) + "] y")
    constants = {"w": random(*w_shape), "k": random(channels, seed=1), **parameters(channels)}
    model, notes = apply(fold_batchnorm, build(text, **constants), {"x": random(*x_shape, seed=2)}, tolerance=TOLERANCE)
    assert ops(model) == [conv.split("<")[0]]
    assert model.graph[0].outputs[0].name == "y"
    assert notes[0].message == "1 batch normalizations folded into layers"


def test_numbers_against_float64() -> None:
    p, w = parameters(3), random(3, 2, 1, 1)
    proto = build(f"g (float[1,2,4,4] x) => (float[1,3,4,4] y) {{ c = Conv(x, w) \n y = {BN} }}", w=w, **p)
    model = load(proto)
    fold_batchnorm(model)
    scale = p["s"].astype(np.float64) / np.sqrt(p["var"].astype(np.float64) + float(np.float32(1e-3)))
    got_w, got_b = (model.graph[0].inputs[i].const_value.numpy() for i in (1, 2))  # type: ignore[union-attr]
    np.testing.assert_array_equal(got_w, (w * scale[:, None, None, None]).astype(np.float32))
    np.testing.assert_array_equal(got_b, (p["b"] - p["mean"] * scale).astype(np.float32))


@pytest.mark.parametrize("trans", [0, 1])
@pytest.mark.parametrize("bias", ["", ", k", ", row", ", scalar", ", column"])
def test_after_gemm(trans: int, bias: str) -> None:
    text = (
        f"g (float[3,4] x) => (float[3,5] y) {{ c = Gemm<transB = {trans}, alpha = 2.0, beta = 0.5>(x, w{bias}) \n "
        f"y = {BN} }}"
    )
    constants = {
        "w": random(5, 4) if trans else random(4, 5),
        "k": random(5, seed=1),
        "row": random(1, 5, seed=1),
        "scalar": np.float32(3),
        "column": random(3, 1, seed=1),
    }
    model, _ = apply(
        fold_batchnorm, build(text, **constants, **parameters(5)), {"x": random(3, 4, seed=2)}, tolerance=TOLERANCE
    )
    assert ops(model) == ["Gemm"]


def with_shapes(model: ir.Model) -> list[Note]:
    return [*lift_constants(model), *infer_shapes(model), *fold_constants(model), *fold_batchnorm(model)]


def test_after_matmul_without_bias() -> None:
    text = f"g (float[3,4] x) => (float[3,5] y) {{ c = MatMul(x, w) \n y = {BN} }}"
    model, _ = apply(
        with_shapes, build(text, w=random(4, 5), **parameters(5)), {"x": random(3, 4)}, tolerance=TOLERANCE
    )
    assert ops(model) == ["MatMul", "Add"]
    assert model.graph[1].outputs[0].name == "y"


def test_after_matmul_and_add() -> None:
    text = f"g (float[3,4] x) => (float[3,5] y) {{ m = MatMul(x, w) \n c = Add(k, m) \n y = {BN} }}"
    proto = build(text, w=random(4, 5), k=random(5, seed=1), **parameters(5))
    model, _ = apply(with_shapes, proto, {"x": random(3, 4)}, tolerance=TOLERANCE)
    assert ops(model) == ["MatMul", "Add"]


def test_matmul_whose_channels_are_not_the_last_axis() -> None:
    text = f"g (float[2,5,4] x) => (float[2,5,5] y) {{ c = MatMul(x, w) \n y = {BN} }}"
    model, notes = apply(with_shapes, build(text, w=random(4, 5), **parameters(5)), {"x": random(2, 5, 4)})
    assert ops(model) == ["MatMul", "BatchNormalization"]
    assert "not the last axis" in str(notes)


def test_parameters_in_constant_nodes_behind_arithmetic() -> None:
    text = """g (float[1,2,4,4] x) => (float[1,3,4,4] y) {
        one = Constant<value_float = 1.0>() \n n = Constant<value_ints = [3]>() \n s = Expand(one, n)
        c = Conv(x, w) \n y = BatchNormalization(c, s, b, mean, var) }"""
    p = parameters(3)
    del p["s"]
    model, _ = apply(
        with_shapes, build(text, w=random(3, 2, 1, 1), **p), {"x": random(1, 2, 4, 4)}, tolerance=TOLERANCE
    )
    assert ops(model) == ["Conv"]


BEFORE = "BatchNormalization<epsilon = 1e-3>(r, s, b, mean, var)"


@pytest.mark.parametrize("layer", ["Conv(n, w)", 'Conv<auto_pad = "VALID">(n, w, k)', "Conv<group = 2>(n, g, k)"])
def test_before_a_convolution_without_padding(layer: str) -> None:
    text = f"g (float[2,4,5,5] x) => (float[2,6,3,3] y) {{ r = Relu(x) \n n = {BEFORE} \n y = {layer} }}"
    constants = {"w": random(6, 4, 3, 3), "g": random(6, 2, 3, 3), "k": random(6, seed=1), **parameters(4)}
    model, _ = apply(fold_batchnorm, build(text, **constants), {"x": random(2, 4, 5, 5)}, tolerance=TOLERANCE)
    assert ops(model) == ["Relu", "Conv"]


def test_before_a_pointwise_convolution_that_pads_to_same() -> None:
    text = f"""g (float[2,4,5,5] x) => (float[2,6,5,5] y) {{
        r = Relu(x) \n n = {BEFORE} \n y = Conv<auto_pad = "SAME_UPPER">(n, w) }}"""
    model, _ = apply(
        fold_batchnorm,
        build(text, w=random(6, 4, 1, 1), **parameters(4)),
        {"x": random(2, 4, 5, 5)},
        tolerance=TOLERANCE,
    )
    assert ops(model) == ["Relu", "Conv"]


def padded(zero_shift: bool) -> onnx.ModelProto:
    text = (
        f"g (float[2,4,5,5] x) => (float[2,6,5,5] y) {{ r = Relu(x) \n n = {BEFORE} \n "
        f"y = Conv<pads = [1,1,1,1]>(n, w) }}"
    )
    p = parameters(4)
    if zero_shift:
        p["b"] = p["mean"] = np.zeros(4, np.float32)
    return build(text, w=random(6, 4, 3, 3), **p)


def test_before_a_padding_convolution() -> None:
    feeds = {"x": random(2, 4, 5, 5)}
    model, notes = apply(fold_batchnorm, padded(zero_shift=False), feeds)
    assert ops(model) == ["Relu", "BatchNormalization", "Conv"]
    assert "pads with zeros" in notes[0].message
    model, _ = apply(fold_batchnorm, padded(zero_shift=True), feeds, tolerance=TOLERANCE)
    assert ops(model) == ["Relu", "Conv"]


@pytest.mark.parametrize(
    "layer",
    ["Gemm(n, w, k)", "Gemm<alpha = 2.0, beta = 0.5>(n, w, k)", "Gemm<transB = 1, alpha = 2.0>(n, wt)", "MatMul(n, w)"],
)
def test_before_a_matrix_product(layer: str) -> None:
    text = f"g (float[3,4] x) => (float[3,5] y) {{ r = Relu(x) \n n = {BEFORE} \n y = {layer} }}"
    constants = {"w": random(4, 5), "wt": random(5, 4), "k": random(5, seed=1), **parameters(4)}
    model, _ = apply(with_shapes, build(text, **constants), {"x": random(3, 4)}, tolerance=TOLERANCE)
    assert ops(model) == ["Relu", layer.split("(")[0].split("<")[0], *(["Add"] if "MatMul" in layer else [])]


@pytest.mark.parametrize(
    ("x", "y", "layer", "reason"),
    [
        ((2, 4, 5, 5), (2, 6, 5, 5), 'Conv<auto_pad = "SAME_UPPER">(n, c)', "pads with zeros"),
        ((2, 4, 5, 5), (2, 6, 5, 5), 'Conv<auto_pad = "SAME_LOWER">(n, c)', "pads with zeros"),
        ((4, 4), (4, 5), "Gemm<transA = 1>(n, w)", "reads its input transposed"),
        ((2, 4, 4), (2, 4, 5), "MatMul(n, w)", "not the axis that"),
    ],
)
def test_before_a_layer_that_mixes_channels_otherwise(
    x: tuple[int, ...], y: tuple[int, ...], layer: str, reason: str
) -> None:
    """Of as many channels as there are numbers along the other axis: folded, it would run, and be wrong."""
    text = f"g (float{list(x)} x) => (float{list(y)} y) {{ r = Relu(x) \n n = {BEFORE} \n y = {layer} }}"
    proto = build(text, w=random(4, 5), c=random(6, 4, 3, 3), **parameters(4))
    model, notes = apply(with_shapes, proto, {"x": random(*x)}, tolerance=TOLERANCE)
    assert ops(model) == ["Relu", "BatchNormalization", layer[:6].split("<")[0].split("(")[0]]
    assert reason in str(notes)


def test_what_is_unfit_stays_with_its_reason() -> None:
    text = f"g (float[3,4] x) => (float[3,5] y) {{ r = Relu(x) \n n = {BEFORE} \n y = Gemm(n, w) }}"
    model = load(build(text, w=random(4, 5), **parameters(4)))
    infer_shapes(model)
    asked = []

    def unfit(layer: Layer, batchnorm: ir.Node, scale: Channels) -> str:
        asked.append((layer.node.op_type, batchnorm.op_type, scale.shape))
        return "better so"

    notes = fold_batchnorm(model, unfit)
    assert asked == [("Gemm", "BatchNormalization", (4,))]
    assert ops(model) == ["Relu", "BatchNormalization", "Gemm"]
    assert notes[0].message.endswith("; better so")


def test_before_a_transposed_convolution_only_without_shift() -> None:
    text = f"g (float[2,4,5,5] x) => (float[2,6,7,7] y) {{ r = Relu(x) \n n = {BEFORE} \n y = ConvTranspose(n, w) }}"
    p = parameters(4)
    model, notes = apply(fold_batchnorm, build(text, w=random(4, 6, 3, 3), **p), {"x": random(2, 4, 5, 5)})
    assert len(ops(model)) == 3
    assert "does not spread a shift evenly" in notes[0].message
    p["b"] = p["mean"] = np.zeros(4, np.float32)
    model, _ = apply(
        fold_batchnorm, build(text, w=random(4, 6, 3, 3), **p), {"x": random(2, 4, 5, 5)}, tolerance=TOLERANCE
    )
    assert ops(model) == ["Relu", "ConvTranspose"]


CONV = f"g (float[1,2,4,4] x) => (float[1,3,4,4] y) {{ c = Conv(x, w) \n y = {BN} }}"


def test_gamma_of_zero_is_exact() -> None:
    p = parameters(3) | {"s": f32([0, 1, 2])}
    model = load(build(CONV, w=random(3, 2, 1, 1), **p))
    fold_batchnorm(model)
    assert ops(model) == ["Conv"]
    got = run(to_proto(model), {"x": random(1, 2, 4, 4)})[0]
    assert (got[0, 0] == p["b"][0]).all()


def test_variance_of_zero_is_exact_with_epsilon() -> None:
    p = parameters(3) | {"var": f32([0, 1, 2])}
    model, _ = apply(
        fold_batchnorm, build(CONV, w=random(3, 2, 1, 1), **p), {"x": random(1, 2, 4, 4)}, tolerance=TOLERANCE
    )
    assert ops(model) == ["Conv"]


def test_negative_variance_is_refused() -> None:
    p = parameters(3) | {"var": f32([-1e-4, 1, 2])}
    model, notes = apply(fold_batchnorm, build(CONV, w=random(3, 2, 1, 1), **p), {"x": random(1, 2, 4, 4)})
    assert ops(model) == ["Conv", "BatchNormalization"]
    assert "variance is negative" in notes[0].message


def test_numbers_that_overflow_are_refused() -> None:
    p = parameters(3) | {"s": f32([1e38, 1, 2]), "var": f32([0, 1, 2])}
    model, notes = apply(
        fold_batchnorm, build(CONV, w=100 + random(3, 2, 1, 1), **p), {"x": np.zeros((1, 2, 4, 4), np.float32)}
    )
    assert ops(model) == ["Conv", "BatchNormalization"]
    assert "not be finite" in notes[0].message


def test_training_mode_is_not_folded() -> None:
    text = CONV.replace("y = BatchNormalization<", "y, rm, rv = BatchNormalization<training_mode = 1, ").replace(
        "[1,3,4,4] y)", "[1,3,4,4] y, float[3] rm, float[3] rv)"
    )
    model, notes = apply(fold_batchnorm, build(text, w=random(3, 2, 1, 1), **parameters(3)), {"x": random(1, 2, 4, 4)})
    assert ops(model) == ["Conv", "BatchNormalization"]
    assert "in training mode" in notes[0].message


def test_nor_is_that_of_old_opsets() -> None:
    text = CONV.replace("y = BatchNormalization<", "y, rm, rv, sm, sv = BatchNormalization<")
    proto = build(text, opset=13, w=random(3, 2, 1, 1), **parameters(3))
    model, notes = apply(fold_batchnorm, proto, {"x": random(1, 2, 4, 4)})
    assert ops(model) == ["Conv", "BatchNormalization"]
    assert "in training mode" in notes[0].message


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (CONV.replace("=> (float", "=> (float[1,3,4,4] c, float"), "'c' is a graph output"),
        (
            CONV.replace(" y) {", " y, float[1,3,4,4] z) {").replace("mean, var) }", "mean, var) \n z = Neg(c) }"),
            "read by 2 nodes",
        ),
        (
            CONV.replace("Conv(x, w)", "Conv(x, w, d)")
            .replace("{ c", "{ d = ReduceMax<axes = [0,1,2], keepdims = 0>(x3) \n c")
            .replace("4,4] x)", "4,4] x, float[1,1,1,3] x3)"),
            "computed at run time",
        ),
    ],
)
def test_why_not(text: str, reason: str) -> None:
    feeds = {"x": random(1, 2, 4, 4)}
    if "x3" in text:
        feeds["x3"] = random(1, 1, 1, 3)
    model, notes = apply(fold_batchnorm, build(text, w=random(3, 2, 1, 1), **parameters(3)), feeds)
    assert "BatchNormalization" in ops(model)
    assert reason in notes[0].message


def test_nothing_beside_it() -> None:
    text = "g (float[1,3,4,4] c) => (float[1,3,4,4] y) { t = BatchNormalization(c, s, b, mean, var) \n y = Relu(t) }"
    _, notes = apply(fold_batchnorm, build(text, **parameters(3)), {"c": random(1, 3, 4, 4)})
    assert notes[0].message == "not folded: nothing before it to fold into, nor after it"


def test_shared_weights_are_copied() -> None:
    text = """g (float[1,2,4,4] x) => (float[1,3,4,4] y, float[1,3,4,4] z) {
        c = Conv(x, w) \n y = BatchNormalization(c, s, b, mean, var) \n z = Conv(x, w) }"""
    w = random(3, 2, 1, 1)
    model, _ = apply(fold_batchnorm, build(text, w=w, **parameters(3)), {"x": random(1, 2, 4, 4)}, tolerance=TOLERANCE)
    assert ops(model) == ["Conv", "Conv"]
    np.testing.assert_array_equal(np.asarray(model.graph.initializers["w"].const_value), w)


def test_half_precision() -> None:
    text = CONV.replace("float", "float16")
    p = {name: array.astype(np.float16) for name, array in parameters(3).items()}
    model, _ = apply(
        fold_batchnorm,
        build(text, w=random(3, 2, 1, 1).astype(np.float16), **p),
        {"x": random(1, 2, 4, 4).astype(np.float16)},
        tolerance=2e-3,
    )
    assert ops(model) == ["Conv"]


def test_inside_a_branch() -> None:
    text = f"""g (float[1,2,4,4] x, bool q) => (float[1,3,4,4] y) {{
        y = If (q) <then_branch = a () => (float[1,3,4,4] p) {{ c = Conv(x, w) \n p = {BN} }},
                    else_branch = e () => (float[1,3,4,4] o) {{ o = Conv(x, w) }}> }}"""
    feeds = {"x": random(1, 2, 4, 4), "q": np.array(True)}
    model, _ = apply(fold_batchnorm, build(text, w=random(3, 2, 1, 1), **parameters(3)), feeds, tolerance=TOLERANCE)
    assert sorted(ops(model)) == ["Conv", "Conv", "If"]
