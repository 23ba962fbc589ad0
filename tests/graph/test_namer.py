from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.graph.files.load import load
from onnxq.graph.files.save import to_proto
from onnxq.graph.namer import Namer, unique_names
from onnxq.graph.traverse import all_graphs, all_nodes
from tests.graph.helpers import apply, build, run
from tests.models import f32

BRANCHES = """g (float[2] x, bool c) => (float[2] y) {
    t = Neg(x)
    u = If (c) <then_branch = a () => (float[2] p) { i = Relu(x) \n p = Abs(i) },
                else_branch = b () => (float[2] p) { p = Abs(x) }>
    y = Add(t, u) }"""


def names(model: ir.Model) -> list[str]:
    found = []
    for graph in all_graphs(model):
        found += [v.name for v in graph.inputs]
        found += [v.name for v in graph.initializers.values() if not v.is_graph_input()]
        found += [v.name for node in graph for v in node.outputs]
    return [name for name in found if name]


def test_branches_of_one_output_name() -> None:
    model, notes = apply(unique_names, build(BRANCHES), {"x": f32([-1, 2]), "c": np.array(True)})
    assert len(set(names(model))) == len(names(model))
    assert [note.node for note in notes] == ["p_1"]


def test_inner_tensor_that_shadows_an_outer_one() -> None:
    proto = build(BRANCHES)
    expected = run(proto, {"x": f32([-1, 2]), "c": np.array(True)})
    branch = proto.graph.node[1].attribute[0].g
    branch.node[0].output[0] = branch.node[1].input[0] = "t"  # onnxruntime itself refuses to load this
    model = load(proto)
    unique_names(model)
    assert sorted(names(model)) == ["c", "p", "p_1", "t", "t_1", "u", "x", "y"]
    np.testing.assert_array_equal(run(to_proto(model), {"x": f32([-1, 2]), "c": np.array(True)})[0], expected[0])


def test_empty_and_equal_node_names() -> None:
    proto = build("g (float[2] x) => (float[2] y) { a = Relu(x) \n b = Relu(a) \n y = Neg(b) }")
    proto.graph.node[0].name = proto.graph.node[2].name = "same"
    model = load(proto)
    unique_names(model)
    assert [node.name for node in all_nodes(model)] == ["same", "Relu", "same_1"]
    np.testing.assert_array_equal(run(to_proto(model), {"x": f32([1, -1])})[0], f32([-1, 0]))


def test_weird_names_stay() -> None:
    weird = "../a b/'ü\"\\名"
    proto = build("g (float[2] x) => (float[2] y) { a = Relu(x) \n y = Neg(a) }")
    proto.graph.node[0].output[0] = proto.graph.node[1].input[0] = proto.graph.node[0].name = weird
    model, notes = apply(unique_names, proto, {"x": f32([1, -1])})
    assert notes == []
    assert model.graph[0].name == model.graph[0].outputs[0].name == weird


def test_unused_optional_outputs_keep_no_name() -> None:
    proto = build("g (float[1,1,4] x) => (float[1,1,2] y) { y, i = MaxPool<kernel_shape=[2], strides=[2]>(x) }")
    proto.graph.node[0].output[1] = ""
    model, _ = apply(unique_names, proto, {"x": np.zeros((1, 1, 4), np.float32)})
    assert [value.name for value in model.graph[0].outputs] == ["y", ""]


def test_fresh_names_take_no_quadratic_time() -> None:
    namer = Namer(load(build("g (float[2] x) => (float[2] y) { y = Relu(x) }")))
    assert namer.fresh("x") == "x_1"
    assert namer.fresh("free") == "free"
    assert len({namer.fresh("x") for _ in range(20000)}) == 20000
    assert namer.node("x") == "x"
