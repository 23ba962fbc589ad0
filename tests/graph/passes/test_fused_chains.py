"""Operators that onnxruntime's optimizer fuses, written out, compute what onnxruntime computes for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from onnxq.graph.foreign import infer_foreign
from onnxq.graph.note import Note
from onnxq.graph.passes.fused_chains import FUSED
from onnxq.graph.passes.write_out import COMPOSITE, write_out
from onnxq.graph.shapes import infer_shapes
from tests.graph.helpers import apply, ops, random

DOMAIN = "com.microsoft"
BATCH, ROWS, SIZE, HEADS = 2, 5, 12, 3


def written(model: ir.Model) -> list[Note]:
    infer_shapes(model)
    infer_foreign(model)
    return write_out(model, COMPOSITE)


def one(
    op: str,
    feeds: dict[str, NDArray[Any]],
    inputs: list[str],
    constants: dict[str, NDArray[Any]],
    outputs: tuple[str, ...] = ("y",),
    free: tuple[str, ...] = (),
    ranks: tuple[int, ...] = (3, 3, 3, 3),
    **attributes: Any,
) -> onnx.ModelProto:
    """A model of one node.

    Args:
        op: its type.
        feeds: an array for each input of the model.
        inputs: names of the node's.
        constants: those of the model.
        outputs: names of the node's; empty ones are left out.
        free: inputs whose batch and rows are free.
        ranks: of the outputs.
        attributes: of the node.
    """
    node = helper.make_node(op, inputs, outputs, name="it", domain=DOMAIN, **attributes)

    def info(name: str, array: NDArray[Any]) -> onnx.ValueInfoProto:
        shape: list[int | str] = list(array.shape)
        if name in free:
            shape[:2] = ["batch", "rows"][: len(shape)]
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), shape)

    results = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [f"{name}_{axis}" for axis in range(rank)])
        for name, rank in zip(outputs, ranks, strict=False)
        if name
    ]
    stored = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph([node], "g", [info(*item) for item in feeds.items()], results, stored)
    versions = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=versions, ir_version=8)


def check(model: onnx.ModelProto, feeds: dict[str, NDArray[Any]], **limits: Any) -> ir.Model:
    """Written out it gives the same; the model."""
    made, notes = apply(written, model, feeds, **limits)
    assert notes and not {f"{DOMAIN}::{op}" for op in ops(made)} & FUSED
    assert all(node.domain == "" for node in made.graph)
    return made


X = random(BATCH, ROWS, SIZE, seed=1)
ROW = {"b": random(SIZE, seed=2)}


@pytest.mark.parametrize("free", [(), ("x",)])
@pytest.mark.parametrize(
    ("op", "inputs", "attributes"),
    [
        ("Gelu", ["x"], {}),
        ("BiasGelu", ["x", "b"], {}),
        ("FastGelu", ["x"], {}),
        ("FastGelu", ["x", "b"], {}),
        ("QuickGelu", ["x"], {}),
        ("QuickGelu", ["x"], {"alpha": 1.0}),
    ],
)
def test_functions(op: str, inputs: list[str], attributes: dict[str, Any], free: tuple[str, ...]) -> None:
    check(one(op, {"x": X}, inputs, ROW if "b" in inputs else {}, free=free, **attributes), {"x": X})


@pytest.mark.parametrize("op", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
@pytest.mark.parametrize("total", [False, True])
@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize("rows", [(BATCH, ROWS, SIZE), (1, ROWS, SIZE), (ROWS, SIZE)])
def test_normalizations_of_a_sum(op: str, rows: tuple[int, ...], *, more: bool, total: bool) -> None:
    feeds = {"x": X, "s": random(*rows, seed=3)}
    constants = {"g": random(SIZE, seed=4), "h": random(SIZE, seed=5), **ROW}
    shift = ["h" if more else ""] if op == "SkipLayerNormalization" else []
    inputs = ["x", "s", "g", *shift, "b" if more else ""]
    outputs = ("y", "", "", "t") if total else ("y",)
    used = {name: array for name, array in constants.items() if name in inputs}
    check(one(op, feeds, inputs, used, outputs, epsilon=1e-3), feeds)


@pytest.mark.parametrize("kinds", [False, True])
@pytest.mark.parametrize("places", [False, True])
@pytest.mark.parametrize("free", [(), ("ids", "kinds", "at")])
def test_embeddings(free: tuple[str, ...], *, kinds: bool, places: bool) -> None:
    rng = np.random.default_rng(0)
    feeds: dict[str, NDArray[Any]] = {"ids": rng.integers(0, 20, (BATCH, ROWS)).astype(np.int32)}
    constants = {"words": random(20, SIZE), "places": random(9, SIZE, seed=6)}
    constants |= {"g": random(SIZE, seed=4), "h": random(SIZE, seed=5)}
    if kinds:
        feeds["kinds"] = rng.integers(0, 2, (BATCH, ROWS)).astype(np.int32)
        constants["of_kinds"] = random(2, SIZE, seed=7)
    if places:
        feeds["at"] = rng.integers(0, 9, (BATCH, ROWS)).astype(np.int32)
    inputs = ["ids", "kinds" if kinds else "", "words", "places", "of_kinds" if kinds else "", "g", "h"]
    inputs += ["", "at"] if places else []
    check(one("EmbedLayerNormalization", feeds, inputs, constants, ("y", ""), free, epsilon=1e-5), feeds)


def test_an_embedding_that_gives_the_lengths_of_its_samples() -> None:
    feeds: dict[str, NDArray[Any]] = {"ids": np.arange(BATCH * ROWS, dtype=np.int32).reshape(BATCH, ROWS), "m": MASK}
    constants = {"words": random(20, SIZE), "places": random(9, SIZE, seed=6)}
    constants |= {"g": random(SIZE, seed=4), "h": random(SIZE, seed=5)}
    constants |= {"w": random(SIZE, 3 * SIZE, seed=8), "b": random(3 * SIZE, seed=9)}
    model = one(
        "EmbedLayerNormalization", feeds, ["ids", "", "words", "places", "", "g", "h", "m"], constants, ("e", "n")
    )
    model.graph.node.append(
        helper.make_node("Attention", ["e", "w", "b", "n"], ["y"], name="heads", domain=DOMAIN, num_heads=HEADS)
    )
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, [BATCH, ROWS, SIZE]))
    check(model, feeds, tolerance=1e-4)


MASK = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]], np.int32)


@pytest.mark.parametrize("free", [(), ("x",)])
@pytest.mark.parametrize(
    ("mask", "added", "attributes"),
    [
        (None, False, {}),
        (MASK, False, {}),
        (MASK * 2 - 1, False, {"mask_filter_value": -2.0}),
        (MASK, False, {"mask_filter_value": -3.0, "unidirectional": 1}),
        (np.array([3, 5], np.int32), False, {}),
        (np.array([3, 5], np.int32), False, {"unidirectional": 1}),
        (np.stack([MASK.T[:, :1].repeat(ROWS, 1) | np.eye(ROWS, dtype=np.int32)] * 2), True, {}),
        (None, True, {"scale": 0.2}),
        (MASK, False, {"unidirectional": 1, "mask_filter_value": -5e3}),
        (None, False, {"qkv_hidden_sizes": [6, 6, 9]}),
    ],
)
def test_attention(
    mask: NDArray[np.int32] | None, attributes: dict[str, Any], free: tuple[str, ...], *, added: bool
) -> None:
    columns = sum(attributes.get("qkv_hidden_sizes", [SIZE] * 3))
    constants = {"w": random(SIZE, columns, seed=8), "b": random(columns, seed=9)}
    feeds: dict[str, NDArray[Any]] = {"x": X}
    if mask is not None:
        feeds["m"] = mask
        free = (*free, "m") if free and mask.ndim == 1 else free
    if added:
        feeds["a"] = random(BATCH, HEADS, ROWS, ROWS, seed=10)
    inputs = ["x", "w", "b", "m" if mask is not None else "", "", "a" if added else ""]
    model = one("Attention", feeds, inputs, constants, free=free, num_heads=HEADS, **attributes)
    made = check(model, feeds, tolerance=1e-4)
    assert free or "Range" not in ops(made), "importers that know no size of a Range take the model"
    products = [node for node in made.graph if node.op_type == "MatMul"]
    assert sum(bool(p.inputs[1] is not None and p.inputs[1].is_initializer()) for p in products) == 3
    compared = [value for node in made.graph if node.op_type == "Less" for value in node.inputs if value is not None]
    assert all(value.dtype is ir.DataType.INT64 for value in compared), "lengths that 8 bits would change"


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("mask", "added"), [(False, False), (True, False), (False, True)])
def test_attention_of_three_tensors(*, bias: bool, mask: bool, added: bool) -> None:
    longer = ROWS + 2
    feeds: dict[str, NDArray[Any]] = {"x": X, "k": random(BATCH, longer, SIZE, seed=2), "v": random(BATCH, longer, 9)}
    constants = {"b": random(2 * SIZE + 9, seed=9)} if bias else {}
    if mask:
        feeds["m"] = np.pad(MASK, ((0, 0), (0, 2)))
    if added:
        feeds["a"] = random(1, HEADS, ROWS, longer, seed=10)
    inputs = ["x", "k", "v", "b" if bias else "", "m" if mask else "", "a" if added else ""]
    check(one("MultiHeadAttention", feeds, inputs, constants, num_heads=HEADS), feeds, tolerance=1e-4)


@pytest.mark.parametrize("rows", [1, ROWS])
@pytest.mark.parametrize("free", [(), ("x", "m", "p")])
@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("past", [0, 4, None])
def test_attention_that_keeps_keys_and_values(
    free: tuple[str, ...], past: int | None, rows: int, *, mask: bool
) -> None:
    """The first run has a past of no rows, or none at all; others often one new row."""
    x = random(BATCH, rows, SIZE, seed=1)
    feeds: dict[str, NDArray[Any]] = {"x": x}
    if mask:
        feeds["m"] = np.ones((BATCH, rows + (past or 0)), np.int32)
        feeds["m"][0, : (past or 0) // 2] = 0
    if past is not None:
        feeds["p"] = random(2, BATCH, HEADS, past, SIZE // HEADS, seed=3)
    constants = {"w": random(SIZE, 3 * SIZE, seed=8), "b": random(3 * SIZE, seed=9)}
    inputs = ["x", "w", "b", "m" if mask else "", "p" if past is not None else ""]
    model = one("Attention", feeds, inputs, constants, ("y", "n"), free, (3, 5), num_heads=HEADS, unidirectional=1)
    for value in model.graph.input:
        if value.name in free:  # rows of a past and of a mask are others
            for axis, dim in enumerate(value.type.tensor_type.shape.dim):
                if value.name == "p" and axis < 4:
                    dim.dim_param = ("2", "batch", "heads", "before")[axis]
                elif value.name == "m" and axis == 1:
                    dim.dim_param = "total"
    check(model, feeds, tolerance=1e-4)


@pytest.mark.parametrize("rows", [1, ROWS])
@pytest.mark.parametrize("past", [0, 4, None])
@pytest.mark.parametrize("attributes", [{}, {"unidirectional": 1}])
@pytest.mark.parametrize("added", [False, True])
def test_heads_that_keep_keys_and_values(
    attributes: dict[str, Any], past: int | None, rows: int, *, added: bool
) -> None:
    x, k, v = (random(BATCH, rows, SIZE, seed=seed) for seed in (1, 2, 3))
    feeds: dict[str, NDArray[Any]] = {"x": x, "k": k, "v": v}
    if past is not None:
        feeds["pk"], feeds["pv"] = (random(BATCH, HEADS, past, SIZE // HEADS, seed=seed) for seed in (4, 5))
    if added:
        feeds["a"] = random(1, HEADS, rows, rows + (past or 0), seed=10)
    inputs = ["x", "k", "v", "b", "", "a" if added else "", *(("pk", "pv") if past is not None else ())]
    constants = {"b": random(3 * SIZE, seed=9)}
    outputs = ("y", "nk", "nv")
    model = one("MultiHeadAttention", feeds, inputs, constants, outputs, ranks=(3, 4, 4), num_heads=HEADS, **attributes)
    check(model, feeds, tolerance=1e-4)


@pytest.mark.parametrize("names", [("rows", "total"), (None, None)])
def test_masks_over_keys_of_before(names: tuple[str | None, str | None]) -> None:
    x, k, v = (random(BATCH, 2, SIZE, seed=seed) for seed in (1, 2, 3))
    feeds: dict[str, NDArray[Any]] = {"x": x, "k": k, "v": v, "m": np.ones((BATCH, 6), np.int32)}
    feeds["pk"], feeds["pv"] = (random(BATCH, HEADS, 4, SIZE // HEADS, seed=seed) for seed in (4, 5))
    feeds["m"][0, :3] = 0
    inputs, outputs = ["x", "k", "v", "", "m", "", "pk", "pv"], ("y", "nk", "nv")
    model = one("MultiHeadAttention", feeds, inputs, {}, outputs, ranks=(3, 4, 4), num_heads=HEADS)
    for value in model.graph.input:
        dim = value.type.tensor_type.shape.dim[1]
        if value.name in ("k", "v", "m"):
            dim.Clear()
            dim.dim_param = names[value.name == "m"] or ""
    check(model, feeds, tolerance=1e-4)


@pytest.mark.parametrize("bias", [False, True])
def test_heads_whose_keys_and_values_were_kept(*, bias: bool) -> None:
    """As in the second half of a model with an encoder: nothing is added to them any more."""
    feeds = {"x": X, "k": random(BATCH, HEADS, 7, SIZE // HEADS, seed=2), "v": random(BATCH, HEADS, 7, 4, seed=3)}
    constants = {"b": random(3 * SIZE, seed=9)} if bias else {}
    model = one("MultiHeadAttention", feeds, ["x", "k", "v", "b" if bias else ""], constants, num_heads=HEADS)
    check(model, feeds, tolerance=1e-4)


@pytest.mark.parametrize("attributes", [{}, {"alpha": 0.3}, {"transB": 1, "alpha": 2.0}, {"transA": 1}])
def test_products(attributes: dict[str, Any]) -> None:
    z = (
        random(BATCH, 7, SIZE)
        if attributes.get("transB")
        else random(BATCH, ROWS if "transA" in attributes else SIZE, 7)
    )
    feeds = {"x": X, "z": z}
    check(one("FusedMatMul", feeds, ["x", "z"], {}, **attributes), feeds)


@pytest.mark.parametrize(("longer", "left"), [(0, False), (2, True)])
def test_what_comes_later_is_hidden_where_there_are_as_many_keys_as_queries(longer: int, left: bool) -> None:
    feeds: dict[str, NDArray[Any]] = {"x": X, "k": random(BATCH, ROWS + longer, SIZE, seed=2)}
    feeds["v"] = random(BATCH, ROWS + longer, SIZE, seed=3)
    model = one("MultiHeadAttention", feeds, ["x", "k", "v"], {}, num_heads=HEADS, unidirectional=1)
    if left:
        assert ops(apply(written, model, feeds)[0]) == ["MultiHeadAttention"]
    else:
        check(model, feeds, tolerance=1e-4)


@pytest.mark.parametrize("op", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
def test_a_normalization_that_does_not_say_its_epsilon(op: str) -> None:
    feeds = {"x": X * 1e-6, "s": random(BATCH, ROWS, SIZE, seed=3) * np.float32(1e-6)}
    check(one(op, feeds, ["x", "s", "g"], {"g": random(SIZE, seed=4)}), feeds, tolerance=1e-4)


def test_two_axes_without_a_name_are_not_taken_as_equal() -> None:
    """A mask of one axis with twice as many numbers as samples has both ends of each."""
    constants = {"w": random(SIZE, 3 * SIZE), "b": random(3 * SIZE)}
    feeds = {"x": X, "m": np.array([3, 5, 0, 1], np.int32)}
    model = one("Attention", feeds, ["x", "w", "b", "m"], constants, num_heads=HEADS)
    for info in model.graph.input:
        info.type.tensor_type.shape.dim[0].Clear()
    assert ops(apply(written, model, feeds)[0]) == ["Attention"]


@pytest.mark.parametrize("by_head", [False, True])
@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("attributes", [{}, {"interleaved": 1}, {"rotary_embedding_dim": 4, "num_heads": HEADS}])
@pytest.mark.parametrize("free", [(), ("x", "at")])
def test_turned_heads(attributes: dict[str, Any], free: tuple[str, ...], *, each: bool, by_head: bool) -> None:
    """Places of each sample, or that of the first row."""
    size, rng = 8, np.random.default_rng(0)
    shape = (BATCH, HEADS, ROWS, size) if by_head else (BATCH, ROWS, HEADS * size)
    at = rng.integers(0, 20, (BATCH, ROWS)) if each else np.array([3])
    feeds: dict[str, NDArray[Any]] = {"x": random(*shape, seed=1), "at": at}
    tables = {
        name: random(20, attributes.get("rotary_embedding_dim", size) // 2, seed=k) for k, name in enumerate("cs")
    }
    free = tuple(name for name in free if not (by_head and name == "x") and (each or name == "x"))
    model = one("RotaryEmbedding", feeds, ["x", "at", "c", "s"], tables, free=free, ranks=(len(shape),), **attributes)
    check(model, feeds)


def test_what_is_left() -> None:
    """Masks with both ends of each sample, weights that are not constant."""
    constants = {"w": random(SIZE, 3 * SIZE), "b": random(3 * SIZE)}
    ends = {"x": X, "m": np.array([3, 5, 0, 1], np.int32)}
    for feeds, inputs, stored in (
        (ends, ["x", "w", "b", "m"], constants),
        ({"x": X, **constants}, ["x", "w", "b"], {}),
    ):
        made, notes = apply(written, one("Attention", feeds, inputs, stored, num_heads=HEADS), feeds)
        assert ops(made) == ["Attention"] and not notes
