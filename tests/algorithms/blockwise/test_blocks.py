"""Blocks: where a graph falls apart, and what belongs to each part."""

from __future__ import annotations

import onnx_ir as ir

from onnxq import Options
from onnxq.algorithms.blockwise.blocks import Block, find_blocks, single_layers
from onnxq.algorithms.common.quantized_layer import QuantizedLayer, quantized_layers
from onnxq.backend_choice import backend_named
from onnxq.planning.planner import make_plan
from onnxq.prepare import Prepared
from tests.models import build, normal

W = normal(8, 8, 3, 3)


def scene(text: str, **constants: object) -> tuple[ir.Model, list[QuantizedLayer]]:
    """A normalized model and its layers, all of them quantized, each named like its output."""
    proto = build(text, **constants)  # type: ignore[arg-type]
    for node in proto.graph.node:
        node.name = node.output[0]
    model = Prepared(proto, Options()).model
    plan = make_plan(model, backend_named("onnxruntime"), Options(placement="all"))
    return model, quantized_layers(model, plan)


def shown(blocks: list[Block]) -> list[tuple[str, list[str], str]]:
    """Inputs, layers and output of each."""
    return [(" ".join(b.inputs), [x.name for x in b.layers], b.output) for b in blocks]


def conv(out: str, given: str, weight: str = "w") -> str:
    return f"{out} = Conv <pads = [1, 1, 1, 1]> ({given}, {weight})\n"


def test_a_chain_falls_into_threes() -> None:
    text = "(float[1, 8, 6, 6] x) => (float[1, 8, 6, 6] y) {" + conv("a", "x") + "r = Relu (a)\n"
    text += conv("b", "r", "w2") + conv("c", "b", "w3") + "s = Relu (c)\n" + conv("d", "s", "w4") + "y = Relu (d) }"
    model, layers = scene(text, w=W, w2=W + 1, w3=W + 2, w4=W + 3)
    assert shown(find_blocks(model, layers)) == [("x", ["a", "b", "c"], "s"), ("s", ["d"], "y")]
    alone = [("x", ["a"], "r"), ("r", ["b"], "b"), ("b", ["c"], "s"), ("s", ["d"], "y")]
    assert shown(single_layers(model, layers)) == alone


def test_a_residual_branch_is_a_block() -> None:
    text = "(float[1, 8, 6, 6] x) => (float[1, 8, 6, 6] y) {" + conv("a", "x") + "r = Relu (a)\n"
    text += conv("b", "r", "w2") + "s = Relu (b)\n" + conv("c", "s", "w3") + "t = Add (c, r)\nu = Relu (t)\n"
    text += conv("d", "u", "w4") + "y = Sigmoid (d) }"
    model, layers = scene(text, w=W, w2=W + 1, w3=W + 2, w4=W + 3)
    found = find_blocks(model, layers)
    assert shown(found) == [("x", ["a"], "r"), ("r", ["b", "c"], "u"), ("u", ["d"], "d")]
    assert [node.op_type for node in found[1].nodes] == ["Conv", "Relu", "Conv", "Add", "Relu"]
    assert found[1].name == "b … c"


def test_the_output_of_the_model_may_be_read_on() -> None:
    text = "(float[1, 8, 6, 6] x) => (float[1, 8, 6, 6] a, float[1, 8, 6, 6] y) {" + conv("a", "x")
    text += "r = Relu (a)\n" + conv("y", "r", "w2") + "}"
    model, layers = scene(text, w=W, w2=W + 1)
    assert shown(find_blocks(model, layers)) == [("x", ["a", "y"], "y")]
    assert shown(single_layers(model, layers)) == [("x", ["a"], "a"), ("r", ["y"], "y")]


def test_what_depends_on_no_layer_may_cross() -> None:
    text = "(float[1, 8, 6, 6] x) => (float[1, 8, 6, 6] y) {m = Sigmoid (x)\n" + conv("a", "m")
    text += "b = Mul (a, m)\n" + conv("c", "b", "w2") + "d = Mul (c, m)\n" + conv("e", "d", "w3") + "y = Mul (e, m) }"
    model, layers = scene(text, w=W, w2=W + 1, w3=W + 2)
    (block,) = find_blocks(model, layers)
    assert (sorted(block.inputs), len(block.layers), block.output) == (["m"], 3, "e")


def test_shapes_may_cross() -> None:
    text = (
        "(float[N, 8, 6, 6] x) => (float[N, 288] y) {"
        + conv("a", "x")
        + conv("b", "a", "w2")
        + "n = Shape <end = 1> (a)\n"
    )
    text += conv("c", "b", "w3") + "s = Concat <axis = 0> (n, k)\nf = Reshape (c, s)\ny = Gemm (f, v) }"
    model, layers = scene(text, w=W, w2=W + 1, w3=W + 2, v=normal(288, 288), k=normal(1).astype("int64") * 0 - 1)
    found = find_blocks(model, layers)
    assert [len(block.layers) for block in found] == [3, 1]
    assert found[-1].output == "y"


def test_long_skips_leave_single_layers() -> None:
    text = "(float[1, 8, 6, 6] x) => (float[1, 8, 6, 6] y) {" + conv("a0", "x", "w0")
    text += "".join(conv(f"a{i}", f"a{i - 1}", f"w{i}") for i in range(1, 20))
    text += "".join(f"s{i} = Add (a{19 - i}, {f's{i - 1}' if i else 'a19'})\n" for i in range(20)) + "y = Relu (s19) }"
    model, layers = scene(text, **{f"w{i}": W + i for i in range(20)})
    found = find_blocks(model, layers)
    assert [len(block.layers) for block in found] == [1] * 20
    assert [block.output for block in found] == [f"a{i}" for i in range(20)]


def test_layers_in_branches_of_the_graph_are_left_out() -> None:
    text = "(float[1, 8, 6, 6] x, bool c) => (float[1, 8, 6, 6] y) {" + conv("a", "x")
    text += "y = If (c) <then_branch = g () => (t) {" + conv("t", "a", "w2") + "}, "
    text += "else_branch = h () => (e) { e = Relu (a) }> }"
    model, layers = scene(text, w=W, w2=W + 1)
    assert shown(find_blocks(model, layers)) == [("x", ["a"], "a")]
