from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxq.graph.files.load import load
from onnxq.graph.files.save import to_proto
from onnxq.graph.note import Note
from onnxq.graph.passes import constant_sizes as sizes
from onnxq.graph.passes import constants as module
from onnxq.graph.passes.constants import fold_constants, lift_constants
from onnxq.graph.shapes import infer_shapes
from tests.graph.helpers import Array, apply, build, ops, random
from tests.models import f32, i64

X = {"x": random(4)}


def fold(model: ir.Model) -> list[Note]:
    return [*lift_constants(model), *infer_shapes(model), *fold_constants(model)]


def constant(model: ir.Model, name: str) -> Array:
    tensor = model.graph.initializers[name].const_value
    assert tensor is not None
    return tensor.numpy()


@pytest.mark.parametrize(
    ("attribute", "expected"),
    [
        ("value = float[2] {1.5, 2.5}", f32([1.5, 2.5])),
        ("value_float = 1.5", np.float32(1.5)),
        ("value_floats = [1.5, 2.5]", f32([1.5, 2.5])),
        ("value_int = 3", np.int64(3)),
        ("value_ints = [3, 4]", i64([3, 4])),
    ],
)
def test_constant_nodes_become_initializers(attribute: str, expected: Array) -> None:
    text = (
        f"g (float[4] x) => (float[4] y) {{ c = Constant<{attribute}>() \n s = Shape(c) \n "
        f"t = Cast<to = 1>(s) \n r = ReduceSum(t) \n y = Add(x, r) }}"
    )
    model, _ = apply(lift_constants, build(text), X)
    assert "Constant" not in ops(model)
    np.testing.assert_array_equal(constant(model, "c"), expected)
    assert constant(model, "c").dtype == expected.dtype


@pytest.mark.parametrize(("attribute", "shape"), [('value_string = "a"', ()), ('value_strings = ["a", "bc"]', (2,))])
def test_strings(attribute: str, shape: tuple[int, ...]) -> None:
    text = f"g (string[2] x) => (bool[2] y) {{ c = Constant<{attribute}>() \n y = Equal(x, c) }}"
    proto = build(text, opset=19, ir_version=9)
    model, _ = apply(lift_constants, proto, {"x": np.array(["a", "bc"], dtype=object)})
    assert constant(model, "c").shape == shape


def test_sparse_constant() -> None:
    proto = build("g (float[4] x) => (float[4] y) { c = Constant<value_float = 1.0>() \n y = Add(x, c) }")
    values = onnx.numpy_helper.from_array(f32([5, 7]), "v")
    indices = onnx.numpy_helper.from_array(i64([[1], [3]]), "i")
    sparse = onnx.helper.make_sparse_tensor(values, indices, [4])
    proto.graph.node[0].attribute[0].CopyFrom(onnx.helper.make_attribute("sparse_value", sparse))
    model = load(proto)
    lift_constants(model)
    np.testing.assert_array_equal(constant(model, "c"), [0, 5, 0, 7])


def test_constant_that_is_an_output_stays_a_node() -> None:
    text = "g (float[4] x) => (float[4] y, float c) { c = Constant<value_float = 2.0>() \n y = Mul(x, c) }"
    model, _ = apply(fold, build(text), X)
    assert ops(model) == ["Constant", "Mul"]


def test_whole_chain_at_once() -> None:
    text = """g (float[4] x) => (float[4] y) {
        a = Transpose(w) \n b = Cast<to = 11>(a) \n c = Cast<to = 1>(b) \n s = Constant<value_ints = [4]>()
        d = Reshape(c, s) \n e = Mul(d, d) \n y = Add(x, e) }"""
    w = random(2, 2)
    model, notes = apply(fold, build(text, w=w), X)
    assert ops(model) == ["Add"]
    assert set(model.graph.initializers) >= {"e"}
    np.testing.assert_array_equal(constant(model, "e"), w.T.reshape(4) * w.T.reshape(4))
    assert notes[-1].message == "5 nodes computed from constants alone"


def test_constants_hidden_behind_castlike_and_expand() -> None:
    text = """g (float[4] x) => (float[4] y) {
        one = Constant<value_int = 1>() \n f = CastLike(one, x0) \n s = Constant<value_ints = [4]>() \n w = Expand(f, s)
        y = Mul(x, w) }"""
    model, _ = apply(fold, build(text, x0=np.zeros(1, np.float32)), X)
    assert ops(model) == ["Mul"]


def test_shapes_that_are_known() -> None:
    text = (
        "g (float[2,3] x) => (float[6] y) { a = Neg(x) \n s = Shape(a) \n "
        "p = ReduceProd<keepdims = 1>(s) \n y = Reshape(a, p) }"
    )
    model, _ = apply(fold, build(text), {"x": random(2, 3)})
    assert ops(model) == ["Neg", "Reshape"]
    np.testing.assert_array_equal(constant(model, "p"), [6])


def test_shape_with_start_and_size() -> None:
    text = (
        "g (float[2,3] x) => (int64 y, int64[1] z) { a = Size(x) \n y = Neg(a) \n "
        "b = Shape<start = -1>(x) \n z = Neg(b) }"
    )
    model, _ = apply(fold, build(text), {"x": random(2, 3)})
    assert ops(model) == ["Neg", "Neg"]


def test_shapes_that_vary_stay() -> None:
    text = "g (float[n,3] x) => (float[m] y) { s = Shape(x) \n p = ReduceProd<keepdims = 1>(s) \n y = Reshape(x, p) }"
    model, _ = apply(fold, build(text), {"x": random(2, 3)})
    assert ops(model) == ["Shape", "ReduceProd", "Reshape"]


def test_stale_shapes_are_not_folded() -> None:
    text = "g (float[n,3] x) => (int64[2] y) <float[1,3] a> { a = Neg(x) \n s = Shape(a) \n y = Neg(s) }"
    model, _ = apply(fold, build(text), {"x": random(2, 3)})
    assert "Shape" in ops(model)


@pytest.mark.parametrize(
    "body",
    [
        "r = RandomNormalLike<seed = 1.0>(w) \n z = Mul(r, zero) \n y = Add(x, z)",
        "d = DequantizeLinear(q, s) \n e = Neg(d) \n y = Add(x, e)",
    ],
)
def test_never_folded(body: str) -> None:
    constants = {"w": random(4), "q": np.array([1, -2, 3, 4], np.int8), "s": np.float32(0.1), "zero": np.float32(0)}
    proto = build(f"g (float[4] x) => (float[4] y) {{ {body} }}", **constants)
    model, _ = apply(fold, proto, X)
    assert len(ops(model)) == 3


def test_quantized_constant_becomes_integers() -> None:
    text = "g (float[4] x) => (float[4] y) { q = QuantizeLinear(w, s) \n d = DequantizeLinear(q, s) \n y = Add(x, d) }"
    model, _ = apply(fold, build(text, w=random(4), s=np.float32(0.1)), X)
    assert ops(model) == ["DequantizeLinear", "Add"]
    assert model.graph.initializers["q"].dtype == ir.DataType.UINT8
    assert "w" not in model.graph.initializers or not model.graph.initializers["w"].uses()


def test_constant_quantized_to_4_bits_stays() -> None:
    body = "q = QuantizeLinear(w, s, z) \n d = DequantizeLinear(q, s, z) \n y = Add(x, d)"
    text = f"g (float[4] x) => (float[4] y) {{ {body} }}"
    proto = build(text, opset=21, ir_version=10, w=random(4), s=np.float32(0.1))
    proto.graph.initializer.append(onnx.helper.make_tensor("z", onnx.TensorProto.INT4, [], [0]))
    model, _ = apply(fold, proto, X)
    assert ops(model) == ["QuantizeLinear", "DequantizeLinear", "Add"]


def test_overridable_initializer_is_no_constant() -> None:
    text = "g (float[4] x, float[4] w) => (float[4] y) { a = Neg(w) \n y = Add(x, a) }"
    model, _ = apply(fold, build(text, w=random(4)), {**X, "w": random(4, seed=3)})
    assert ops(model) == ["Neg", "Add"]


@pytest.mark.parametrize(
    "node", ["Expand(one, big)", "ConstantOfShape(big)", "Tile(one, big)", "Range(zero, count, step)"]
)
def test_bombs_are_not_built(node: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("nothing here may be computed")

    monkeypatch.setattr(module, "evaluate", never)
    proto = build(
        (
            f"g (float[1] x) => (float s) {{ a = {node} \n b = Cast<to = 1>(a) \n "
            f"c = ReduceSum<keepdims = 0>(b) \n d = ReduceSum<keepdims = 0>(x) \n s = Add(c, d) }}"
        ),
        one=np.ones(1, np.float32),
        big=i64([1 << 34]),
        zero=np.int64(0),
        count=np.int64(1 << 34),
        step=np.int64(1),
    )
    model = load(proto)
    notes = fold(model)
    assert len(ops(model)) == 5
    assert f"{(1 << 34) * (8 if 'Range' in node else 4)} bytes" in notes[-1].message
    assert len(to_proto(model).SerializeToString()) < 2000


def test_large_result_of_large_inputs_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "MAX_RESULT_BYTES", 100)
    text = "g (float[64,64] x) => (float[64,64] y) { a = Transpose(w) \n y = Add(x, a) }"
    model, _ = apply(fold, build(text, w=random(64, 64)), {"x": random(64, 64)})
    assert ops(model) == ["Add"]


def test_results_do_not_grow_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "MAX_RESULT_BYTES", 1000)
    text = """g (float[1] x) => (float[800] y) {
        a = Expand(one, n) \n b = Tile(a, two) \n c = Tile(b, two) \n y = Mul(x, c) }"""
    model = load(build(text, one=f32([1]), n=i64([200]), two=i64([2])))
    notes = fold(model)
    assert ops(model) == ["Tile", "Tile", "Mul"]
    assert "its result has 1600 bytes" in notes[-1].message


POSITIONS = """g (float[1,49,4] x) => (float[1,49,4] y) {
    a = MatMul(places, first) \n b = Relu(a) \n c = MatMul(b, second) \n y = Add(x, c) }"""
"""A table that a small net computes from constants, as the bias of relative positions in a Swin transformer V2."""
NET = {"places": random(1, 49, 2), "first": random(2, 512), "second": random(512, 4)}


def test_large_results_inside_what_is_computed_are_not_stored() -> None:
    model, _ = apply(fold, build(POSITIONS, **NET), {"x": random(1, 49, 4)})
    assert ops(model) == ["Add"]
    assert {"a", "b"}.isdisjoint(model.graph.initializers)
    assert constant(model, "c").shape == (1, 49, 4)


@pytest.mark.parametrize(
    "text",
    [
        POSITIONS.replace("y = Add(x, c)", "d = Add(x, c) \n e = ReduceSum(b) \n y = Add(d, e)"),
        POSITIONS.replace("y = Add(x, c)", "d = Add(x, c) \n s = Slice(b, i, j, i) \n y = Div(d, s)"),
    ],
)
def test_large_results_that_only_what_is_computed_reads(text: str) -> None:
    feeds = {"x": random(1, 49, 4)}
    proto = build(text, **NET, i=i64([2]), j=i64([3])) if "Slice" in text else build(text, **NET)
    model, _ = apply(fold, proto, feeds)
    assert "MatMul" not in ops(model)


def test_a_large_result_that_something_else_reads_stays_with_its_readers() -> None:
    text = POSITIONS.replace("(float[1,49,4] x)", "(float[1,49,4] x, float[512,4] z)")
    text = text.replace("y = Add(x, c)", "d = MatMul(b, z) \n e = Add(d, c) \n y = Add(x, e)")
    model = load(build(text, **NET))
    notes = fold(model)
    assert ops(model) == ["MatMul", "Relu", "MatMul", "MatMul", "Add", "Add"]
    assert "its result has 100352 bytes" in notes[-1].message


def test_a_result_too_large_to_be_computed_in_passing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "MAX_PASSING_BYTES", 100000)
    model = load(build(POSITIONS, **NET))
    fold(model)
    assert ops(model) == ["MatMul", "Relu", "MatMul", "Add"]


def test_a_table_made_of_a_few_numbers_by_way_of_a_larger_one_stays() -> None:
    text = """g (float[1000] x) => (float[1000] y) {
        n = Range(zero, many, one) \n f = Cast<to=1>(n) \n w = Slice(f, start, end) \n y = Mul(x, w) }"""
    numbers = {
        "zero": np.int64(0),
        "many": np.int64(3000),
        "one": np.int64(1),
        "start": i64([1000]),
        "end": i64([2000]),
    }
    model = load(build(text, **numbers))
    fold(model)
    assert "Mul" in ops(model) and "Slice" in ops(model), "4000 bytes would be stored in place of five numbers"


def test_size_known_only_from_numbers_computed_first() -> None:
    text = """g (float[4] x) => (float[4] y) {
        n = Cast<to = 7>(four) \n i = Range(zero, n, step) \n f = Cast<to = 1>(i) \n y = Add(x, f) }"""
    proto = build(text, four=np.float32(4), zero=np.int64(0), step=np.int64(1))
    model, _ = apply(fold, proto, X)
    assert ops(model) == ["Add"]


def test_what_onnxruntime_cannot_compute_is_left_alone() -> None:
    # There is no kernel for BitShift of int16: the rest is folded all the same.
    text = """g (float[4] x) => (float[4] y) {
        a = BitShift<direction = "LEFT">(i, i) \n b = Cast<to = 1>(a) \n c = Neg(w)
        d = Add(x, c) \n y = Add(d, b) }"""
    model = load(build(text, i=np.ones(4, np.int16), w=random(4)))
    notes = fold(model)
    assert ops(model) == ["BitShift", "Cast", "Add", "Add"]
    assert any("cannot compute" in note.message for note in notes)


def test_inside_branches_with_outer_constants() -> None:
    text = """g (float[4] x, bool c) => (float[4] y) {
        y = If (c) <then_branch = a () => (float[4] p) { k = Neg(w) \n p = Add(x, k) },
                    else_branch = b () => (float[4] q) { l = Constant<value_float = 2.0>() \n q = Mul(x, l) }> }"""
    model, _ = apply(fold, build(text, w=random(4)), {**X, "c": np.array(True)})
    assert sorted(ops(model)) == ["Add", "If", "Mul"]


def test_integers_that_are_read_in_two_shapes_are_stored_once() -> None:
    """Those of a language model's head and of its embedding, by onnxruntime-genai's builder."""
    text = """g (int64[1,2] i) => (float[1,2,128] y) {
        t = Reshape(w, s)
        x = com.microsoft.GatherBlockQuantized<bits = 8, block_size = 32, gather_axis = 0, quantize_axis = 1>(t, i, r)
        y = com.microsoft.MatMulNBits<bits = 8, block_size = 32, K = 128, N = 128>(x, w, r) }"""
    codes = np.random.default_rng(0).integers(0, 256, (128, 4, 32)).astype(np.uint8)
    given: dict[str, Array] = {"w": codes, "s": i64([128, 128]), "r": random(128, 4)}
    proto, data = build(text, **given), {"i": i64([[3, 5]])}
    proto.opset_import.add(domain="com.microsoft", version=1)
    model, _ = apply(fold, proto, data)
    assert ops(model) == ["Reshape", "GatherBlockQuantized", "MatMulNBits"]
    proto = build(text.replace("(x, w, r)", "(x, v, r)"), v=codes + np.uint8(1), **given)
    proto.opset_import.add(domain="com.microsoft", version=1)
    model, _ = apply(fold, proto, data)
    assert ops(model) == ["GatherBlockQuantized", "MatMulNBits"]
