from __future__ import annotations

from functools import partial

import numpy as np
import onnx_ir as ir
import pytest

from onnxq.graph.files.load import load
from onnxq.graph.note import Note
from onnxq.graph.passes.cancel_transposes import cancel_transposes
from onnxq.graph.passes.normalize import normalize
from onnxq.graph.shapes import infer_shapes
from onnxq.options.patterns import match, names_of
from tests.counting import lines_of
from tests.graph.helpers import Array, apply, build, ops, random
from tests.models import f32, i64


def cancelled(model: ir.Model) -> list[Note]:
    infer_shapes(model)
    notes = cancel_transposes(model)
    infer_shapes(model)
    return notes


LAST = "t = Transpose <perm = [0, 2, 3, 1]> (x)"
"""Channels from the second place to the last."""
FEED = {"x": random(2, 3, 4, 5)}


@pytest.mark.parametrize(
    "body",
    [
        "y0 = Relu (t)",
        "a = Add (t, c) \n s = Sub (a, row) \n m = Mul (table, s) \n y0 = Clip (m, low, high)",
        "h = Sigmoid (t) \n y0 = Mul (t, h)",
        "y0 = PRelu (t, c)",
        "a, b = Split <axis = -1> (t) \n y0 = Concat <axis = 3> (b, a)",
        "y0 = Softmax <axis = 1> (t)",
        "m = ReduceMean <axes = [1, 2]> (t) \n y0 = Sub (t, m)",
        "m = ReduceSum (t, spatial) \n y0 = Max (t, m)",
        "p = Pad (t, pads, low) \n y0 = Slice (p, starts, ends, sliced)",
        "y0 = Concat <axis = -1> (t, t, wide)",
        "y0 = Concat <axis = 3> (t, none)",
        "b = Greater (one, low) \n n = Neg (t) \n y0 = Where (b, t, n)",
    ],
)
def test_what_is_between_computes_in_the_other_order(body: str) -> None:
    text = f"""g (float[2, 6, 4, 5] x, float[1] one) => (float[N, C, H, W] y) {{
        {LAST}
        {body}
        y = Transpose <perm = [0, 3, 1, 2]> (y0) }}"""
    constants: dict[str, Array] = {"c": random(6), "row": random(5, 1, seed=1), "table": random(1, 4, 5, 6, seed=2)}
    constants |= {"low": f32(-0.5), "high": f32(0.7), "wide": random(2, 4, 5, 2)}
    constants["none"] = random(2, 4, 5, 0)
    indices: dict[str, Array] = {"spatial": i64([1, 2]), "pads": i64([0, 1, 0, 2, 0, 0, 3, 1])}
    indices |= {"starts": i64([1, 0]), "ends": i64([3, 4]), "sliced": i64([-2, 1])}
    proto = build(text, **{n: a for n, a in {**constants, **indices}.items() if f"{n})" in text or f"{n}," in text})
    model, notes = apply(cancelled, proto, {"x": random(2, 6, 4, 5), "one": random(1)})
    assert "Transpose" not in ops(model)
    assert [note.message for note in notes] == ["2 Transpose nodes fewer"]


def test_a_residual_block_with_channels_last() -> None:
    """Convolutions between Transposes, with bias, batch normalization and activation behind them."""
    block = "".join(
        f"""
        i{k} = Transpose <perm = [0, 3, 1, 2]> (r{k})
        c{k} = Conv <kernel_shape = [1, 1]> (i{k}, w{k})
        o{k} = Transpose <perm = [0, 2, 3, 1]> (c{k})
        s{k} = Sub (o{k}, mean)
        m{k} = Mul (s{k}, scale)
        b{k} = Add (m{k}, mean)
        a{k} = Add (b{k}, r{k})
        r{k + 1} = Relu (a{k})"""
        for k in range(3)
    )
    start = "v = Relu (x) \n r0 = Transpose <perm = [0, 2, 3, 1]> (v)"
    end = "y = ReduceMean <axes = [1, 2], keepdims = 0> (r3)"
    text = f"g (float[N, 8, 6, 7] x) => (float[N, 8] y) {{ {start}\n {block}\n {end} }}"
    constants = {f"w{k}": random(8, 8, 1, 1, seed=k) for k in range(3)}
    proto = build(text, mean=random(1, 1, 1, 8), scale=random(8), **constants)
    for node in proto.graph.node:
        node.name = f"node_{node.output[0]}"
    feeds = {"x": random(2, 8, 6, 7)}
    model, notes = apply(cancelled, proto, feeds, tolerance=1e-5)
    assert "Transpose" not in ops(model)
    assert [note.message for note in notes] == ["7 Transpose nodes fewer"]
    assert {"node_a2", "node_r3", "node_c1"} <= {node.name for node in model.graph}
    whole, _ = apply(lambda m: normalize(m), proto, feeds, tolerance=1e-5)
    assert ops(whole) == ["Relu", *("Conv", "Add", "Relu") * 3, "GlobalAveragePool", "Flatten"], (
        "the affine parts are folded"
    )


def test_who_needs_the_order_reads_it_behind_a_transpose_and_outputs_keep_their_names() -> None:
    text = f"""g (float[2, 3, 4, 5] x) => (float[2, 4, 5, 3] kept, float[2, 60] flat, float[2, 3, 4, 5] y) {{
        {LAST}
        kept = Relu (t)
        e = Exp (kept)
        f = Reshape (e, shape)
        flat = Neg (f)
        z = Add (e, c)
        n = Neg (z)
        a = Transpose <perm = [0, 3, 1, 2]> (n)
        b = Transpose <perm = [0, 3, 1, 2]> (z)
        d = Transpose <perm = [0, 3, 1, 2]> (e)
        ab = Add (a, b)
        y = Add (ab, d) }}"""
    model, _ = apply(cancelled, build(text, shape=i64([2, 60]), c=random(3)), FEED)
    assert ops(model).count("Transpose") == 2
    assert {node.outputs[0].name for node in model.graph if node.op_type == "Transpose"} == {"kept", "e"}


def test_the_output_is_what_was_transposed_back() -> None:
    body = f"{LAST}\n r = Relu (t)\n y = Transpose <perm = [0, 3, 1, 2]> (r)"
    model, _ = apply(cancelled, build(f"g (float[2, 3, 4, 5] x) => (float[2, 3, 4, 5] y) {{ {body} }}"), FEED)
    assert ops(model) == ["Relu"]


def test_patterns_that_name_a_tensor_still_find_its_node() -> None:
    body = f"{LAST}\n r = Relu (t)\n n = Neg (r)\n y = Transpose <perm = [0, 3, 1, 2]> (n)"
    model, _ = apply(cancelled, build(f"g (float[2, 3, 4, 5] x) => (float[2, 3, 4, 5] y) {{ {body} }}"), FEED)
    relu = model.graph[0]
    relu.name = "relu"
    assert relu.outputs[0].name == "r_permuted"
    (found,) = match(["r"], names_of(model))
    assert found.nodes == {"relu"}


def test_another_order_behind_it_is_composed() -> None:
    text = """g (float[2, 3, 4, 5] x) => (float[2, 3, 4, 5] y, float[5, 2, 3, 4] z) {
        t = Transpose <perm = [0, 2, 3, 1]> (x)
        r = Relu (t)
        n = Neg (r)
        y = Transpose <perm = [0, 3, 1, 2]> (n)
        z = Transpose <perm = [2, 0, 3, 1]> (r) }"""
    model, _ = apply(cancelled, build(text), FEED)
    assert ops(model) == ["Relu", "Neg", "Transpose"]


@pytest.mark.parametrize(
    ("shape", "body"),
    [
        ("2, 60", "r = Relu (t) \n f = Flatten (r) \n y = Neg (f)"),
        ("2, 4, 5, 7", "y = MatMul (t, w)"),
        ("2, 3, 4, 5", "r = LayerNormalization <axis = -1> (t, c) \n y = Transpose <perm = [0, 3, 1, 2]> (r)"),
        ("2, 5, 3", "k = ReduceMean <axes = [1], keepdims = 0> (t) \n y = Relu (k)"),
        ("2, 3, 4, 5", "s = Add (t, o) \n y = Transpose <perm = [0, 3, 1, 2]> (s)"),
    ],
)
def test_left_where_it_would_not_help(shape: str, body: str) -> None:
    text = f"g (float[2, 3, 4, 5] x, float[2, 4, 5, 3] o) => (float[{shape}] y) {{ {LAST}\n {body} }}"
    proto = build(text, w=random(3, 7), c=random(3))
    model, notes = apply(cancelled, proto, {**FEED, "o": random(2, 4, 5, 3)})
    assert not notes and ops(model).count("Transpose") == body.count("Transpose") + 1


@pytest.mark.parametrize("seed", range(40))
def test_random_regions_keep_their_numbers(seed: int) -> None:
    """Arithmetic in channels last order at random, with Transposes at random between."""
    rng = np.random.default_rng(seed)
    lines, last, first = [f"v0 = {LAST[4:]}"], ["v0"], ["x"]
    for k in range(1, 14):
        kind = rng.integers(7)
        name = f"v{k}"
        if kind == 0:
            lines.append(f"{name} = Transpose <perm = [0, 3, 1, 2]> ({rng.choice(last)})")
            first.append(name)
        elif kind == 1:
            lines.append(f"{name} = Transpose <perm = [0, 2, 3, 1]> ({rng.choice(first)})")
            last.append(name)
        elif kind == 2:
            lines.append(f"{name} = Relu ({rng.choice(first)})")
            first.append(name)
        else:
            a, b = rng.choice(last, 2)
            form = ("Add ({0}, {1})", "Mul ({0}, c)", "Tanh ({0})", "Sub (r, {0})")[kind - 3]
            lines.append(f"{name} = {form.format(a, b)}")
            last.append(name)
    ends = {n: f"float[2, {'3, 4, 5' if n in first else '4, 5, 3'}] {n}" for n in (first[-1], last[-1], last[0])}
    ends.pop("x", None)
    body = "\n".join(lines)
    text = f"g (float[2, 3, 4, 5] x) => ({', '.join(ends.values())}) {{ {body} }}"
    model, _ = apply(cancelled, build(text, c=random(3), r=random(4, 5, 3, seed=1)), FEED)
    assert ops(model).count("Transpose") <= body.count("Transpose")


def test_a_long_chain_takes_no_longer_for_each_region() -> None:
    def lines(regions: int) -> int:
        text = "\n".join(
            f"c{k} = Conv (y{k}, w) \n a{k} = Transpose <perm = [0, 2, 3, 1]> (c{k}) \n b{k} = Relu (a{k})\n"
            f"y{k + 1} = Transpose <perm = [0, 3, 1, 2]> (b{k})"
            for k in range(regions)
        )
        head = f"g (float[1, 2, 3, 4] y0) => (float[1, 2, 3, 4] y{regions})"
        model = load(build(f"{head} {{\n{text}}}", w=random(2, 2, 1, 1)))
        infer_shapes(model)
        count = lines_of(partial(cancel_transposes, model), "onnxq/graph/", "/onnx_ir/")
        assert ops(model) == ["Conv", "Relu"] * regions
        return count

    assert lines(100) < 4.1 * lines(25)


def test_unknown_ranks_are_left() -> None:
    text = f"g (float x) => (float y) {{ {LAST}\n r = Relu (t)\n y = Transpose <perm = [0, 3, 1, 2]> (r) }}"
    proto = build(text)
    for info in (proto.graph.input[0], proto.graph.output[0]):
        info.type.tensor_type.ClearField("shape")
    proto.graph.node[0].ClearField("attribute")
    assert cancelled(load(proto)) == []
