from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from onnxq.graph.note import Note
from onnxq.graph.passes.einsum_products import einsum_products
from onnxq.graph.shapes import infer_shapes
from tests.graph.helpers import apply, build, ops, random


def written(model: ir.Model) -> list[Note]:
    infer_shapes(model)
    notes = einsum_products(model)
    infer_shapes(model)
    return notes


def shapes(equation: str, sizes: dict[str, int]) -> tuple[list[int], list[int], str]:
    first, second = equation.partition("->")[0].replace(" ", "").split(",")
    return [sizes[c] for c in first], [sizes[c] for c in second], equation


SIZES = dict(zip("abcdefhkqs", (2, 3, 4, 5, 6, 7, 2, 8, 9, 3), strict=True))


@pytest.mark.parametrize(
    ("equation", "made"),
    [
        ("ab,bc->ac", ["MatMul"]),
        ("ab,bc", ["MatMul"]),
        ("ab,cb->ac", ["Transpose", "MatMul"]),
        ("bqhd,bkhd->bhqk", ["Transpose", "Transpose", "MatMul"]),
        ("bhqk,bkhd->bqhd", ["Transpose", "MatMul", "Transpose"]),
        ("bqc,bchs->bqhs", ["Reshape", "MatMul", "Reshape"]),
        ("abcd,cef->abcdef", None),
        ("bchs,bkc->bkhs", ["Transpose", "Reshape", "Transpose", "MatMul", "Reshape", "Transpose"]),
        ("bsd,dhe->bshe", ["Reshape", "MatMul", "Reshape"]),
        ("bshd,hde->bse", ["Reshape", "Reshape", "MatMul"]),
        ("ad,d->a", ["Reshape", "MatMul", "Reshape"]),
        ("d,ad->a", ["Reshape", "Transpose", "MatMul", "Reshape"]),
        ("abc,abc->a", ["Reshape", "Reshape", "MatMul", "Reshape"]),
        ("ab,ab->ab", None),
        ("ab,bc->a", None),
        ("aab,bc->ac", None),
        ("a...b,bc->a...c", None),
    ],
)
def test_two_that_are_computed(equation: str, made: list[str] | None) -> None:
    if made is None:
        made = ["Einsum"]
    if "..." in equation or "aa" in equation:
        first, second = [2, 2, 3], [3, 4]
    else:
        first, second, _ = shapes(equation, SIZES)
    result = list(np.einsum(equation, np.zeros(first), np.zeros(second)).shape)
    text = f"""g (float{first} x, float{second} z) => (float{result} y) {{
        [kept] y = Einsum <equation = "{equation}"> (x, z) }}"""
    model, notes = apply(written, build(text), {"x": random(*first), "z": random(*second)})
    assert ops(model) == made
    assert bool(notes) == (made != ["Einsum"])
    main = next(node for node in model.graph if node.op_type in ("MatMul", "Einsum"))
    assert main.name == "kept"


@pytest.mark.parametrize(
    ("equation", "shape", "weight", "made"),
    [
        ("bsd,dhe->bshe", (2, 3, 4), (4, 5, 6), ["MatMul", "Reshape"]),
        ("bshd,hde->bse", (2, 3, 4, 5), (4, 5, 6), ["Reshape", "MatMul"]),
        ("oc,bchw->bohw", (2, 4, 3, 3), (6, 4), ["Transpose", "MatMul", "Transpose"]),
    ],
)
def test_weights_become_one_matrix(
    equation: str, shape: tuple[int, ...], weight: tuple[int, ...], made: list[str]
) -> None:
    order = "(w, x)" if equation.startswith("oc") else "(x, w)"
    operands = (weight, shape) if equation.startswith("oc") else (shape, weight)
    result = list(np.einsum(equation, *map(np.zeros, operands)).shape)
    text = f'g (float{list(shape)} x) => (float{result} y) {{ y = Einsum <equation = "{equation}"> {order} }}'
    model, _ = apply(written, build(text, w=random(*weight)), {"x": random(*shape)})
    assert ops(model) == made
    product = next(node for node in model.graph if node.op_type == "MatMul")
    assert product.inputs[1] is not None and product.inputs[1].is_initializer()
    assert len(product.inputs[1].shape or ()) == 2


def test_sizes_that_are_not_known() -> None:
    """One may be, in a Reshape, beside those in front; without one, any."""
    text = """g (float[N, 4, H, W] x, float[N, Q, 4] z, float[N, M, 4] v) => (float[N, Q, H, W] y, float[N, Q, M] u) {
        y = Einsum <equation = "nqc,nchw->nqhw"> (z, x)
        u = Einsum <equation = "nqc,nmc->nqm"> (z, v) }"""
    proto = build(text)
    feeds = {"x": random(2, 4, 3, 5), "z": random(2, 6, 4), "v": random(2, 7, 4)}
    model, notes = apply(written, proto, feeds)
    assert ops(model) == ["Einsum", "Transpose", "MatMul"]
    assert [note.message for note in notes] == ["1 Einsum are matrix products"]


@pytest.mark.parametrize(
    ("equation", "declared", "shape"),
    [
        ("bsd,dhe->bshe", "N, S, 4", (2, 3, 4)),  # Keras' attention, to its heads
        ("bshd,hde->bse", "N, S, 4, 5", (2, 3, 4, 5)),  # and back
        ("abcd,dhe->abche", "A, B, C, 4", (2, 3, 2, 4)),
    ],
)
def test_sizes_in_front_need_not_be_known_where_weights_become_a_matrix(
    equation: str, declared: str, shape: tuple[int, ...]
) -> None:
    weight = random(4, 5, 6)
    free = ", ".join("?" * np.einsum(equation, np.zeros(shape), weight).ndim)
    text = f'g (float[{declared}] x) => (float[{free}] y) {{ y = Einsum <equation = "{equation}"> (x, w) }}'
    model, notes = apply(written, build(text, w=weight), {"x": random(*shape)})
    assert sorted(ops(model)) == ["MatMul", "Reshape"] and notes


def test_left() -> None:
    """An axis of one that the other stretches, three tensors, numbers that are no floats."""
    text = """g (float[2, 1] x, float[3, 4] z, int64[2, 3] i, int64[3, 4] j)
        => (float[2, 4] a, float[2] b, int64[2, 4] c) {
        a = Einsum <equation = "ab,bc->ac"> (x, z)
        b = Einsum <equation = "ab,cd,cd->a"> (x, z, z)
        c = Einsum <equation = "ab,bc->ac"> (i, j) }"""
    proto = build(text)
    feeds = {"x": random(2, 1), "z": random(3, 4)} | {
        name: np.arange(n).reshape(shape) for name, n, shape in (("i", 6, (2, 3)), ("j", 12, (3, 4)))
    }
    model, notes = apply(written, proto, feeds)
    assert ops(model) == ["Einsum"] * 3 and not notes
