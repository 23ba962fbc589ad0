from __future__ import annotations

import numpy as np
import pytest

from onnxq.graph.files.load import load
from onnxq.graph.passes.prune import eliminate_identity, remove_dead
from tests.graph.helpers import apply, build, ops, random

X = {"x": random(4)}


def test_chain_of_unread_nodes_goes() -> None:
    text = "g (float[4] x) => (float[4] y) { a = Neg(x) \n b = Add(a, w) \n y = Relu(x) }"
    model, notes = apply(remove_dead, build(text, w=random(4)), X)
    assert ops(model) == ["Relu"]
    assert not model.graph.initializers
    assert "2 nodes" in notes[0].message


def test_unread_input_stays() -> None:
    model, _ = apply(
        remove_dead, build("g (float[4] x, float[4] z) => (float[4] y) { y = Relu(x) }"), {**X, "z": random(4)}
    )
    assert [value.name for value in model.graph.inputs] == ["x", "z"]


def test_optional_outputs_that_nothing_reads_go() -> None:
    text = """g (float[1,4,4] x) => (float[1,4,3] y, float[1,4,3] z) {
        y, i = MaxPool <kernel_shape = [2]> (x)
        z, j = MaxPool <kernel_shape = [2]> (x)
        k = Neg (j) }"""
    model, _ = apply(remove_dead, build(text), {"x": random(1, 4, 4)})
    assert [len(node.outputs) for node in model.graph] == [1, 1]
    text = "g (float[1,4,4] x) => (int64[1,4,3] i) { y, i = MaxPool <kernel_shape = [2]> (x) }"
    model, _ = apply(remove_dead, build(text), {"x": random(1, 4, 4)})
    assert [len(node.outputs) for node in model.graph] == [2]


def test_outputs_in_front_of_one_that_is_needed_stay() -> None:
    text = """g (float[3,1,2] x) => (float[1,1,4] h) { y, h, c = LSTM <hidden_size = 4> (x, w, r) }"""
    constants = {"w": random(1, 16, 2), "r": random(1, 16, 4, seed=1)}
    model, _ = apply(remove_dead, build(text, **constants), {"x": random(3, 1, 2)})
    assert [len(node.outputs) for node in model.graph] == [2]


def test_statistics_of_a_normalization_in_training_stay() -> None:
    """Their number says that it is in training."""
    text = "g (float[2,3,4] x) => (float[2,3,4] y) { y, m, v = BatchNormalization <training_mode = 1> (x, s, b, k, u) }"
    constants = {name: 1 + random(3, seed=seed) ** 2 for seed, name in enumerate("sbku")}
    model, _ = apply(remove_dead, build(text, opset=15, **constants), {"x": random(2, 3, 4)})
    assert [len(node.outputs) for node in model.graph] == [3]


def test_unread_branches_go_with_what_they_read() -> None:
    text = """g (float[4] x, bool c) => (float[4] y) {
        t = Neg(x)
        u = If (c) <then_branch = a () => (float[4] p) { p = Abs(t) },
                    else_branch = b () => (float[4] q) { q = Relu(t) }>
        y = Relu(x) }"""
    model, _ = apply(remove_dead, build(text), {**X, "c": np.array(True)})
    assert ops(model) == ["Relu"]


def test_tensor_read_in_a_branch_only_stays() -> None:
    text = """g (float[4] x, bool c) => (float[4] y) {
        t = Neg(x)
        y = If (c) <then_branch = a () => (float[4] p) { p = Abs(t) },
                    else_branch = b () => (float[4] q) { q = Relu(w) }> }"""
    model, _ = apply(remove_dead, build(text, w=random(4)), {**X, "c": np.array(True)})
    assert "Neg" in ops(model)
    assert "w" in model.graph.initializers


@pytest.mark.parametrize(
    "node",
    [
        *("Identity(a)", "Dropout(a)", "Dropout(a, ratio)", "Dropout(a, ratio, off)", "Cast<to = 1>(a)"),
        *("Max(a, least)", "Max(least, a)", "Min(a, most)"),
    ],
)
def test_what_changes_nothing_goes(node: str) -> None:
    proto = build(
        f"g (float[4] x) => (float[4] y) <float[4] a> {{ a = Neg(x) \n b = {node} \n y = Relu(b) }}",
        ratio=np.float32(0.5),
        off=np.array(False),
        least=np.float32(-np.inf),
        most=np.float32(np.inf),
    )
    model, _ = apply(eliminate_identity, proto, X)
    assert ops(model) == ["Neg", "Relu"]


@pytest.mark.parametrize("node", ["Cast<to = 11>(a)", "Dropout(a, ratio, on)", "Max(a, ratio)", "Min(a, least)"])
def test_what_changes_something_stays(node: str) -> None:
    proto = build(
        f"g (float[4] x) => (bool[4] y) <float[4] a> {{ a = Neg(x) \n b = {node} \n y = Cast<to = 9>(b) }}",
        ratio=np.float32(0.0),
        on=np.array(True),
        least=np.float32(-np.inf),
    )
    model, _ = apply(eliminate_identity, proto, X)
    assert len(ops(model)) == 3


def test_an_operator_without_outputs_stays() -> None:
    proto = build("g (float[4] x) => (float[4] y) { y = Neg(x) }")
    proto.opset_import.add(domain="custom", version=1)
    proto.graph.node.add(op_type="Log", domain="custom", input=["y"])
    model = load(proto)
    assert not eliminate_identity(model) and ops(model) == ["Neg", "Log"]


def test_dropout_whose_mask_is_read_stays() -> None:
    text = "g (float[4] x) => (float[4] y, bool[4] m) { a, m = Dropout(x) \n y = Relu(a) }"
    model, _ = apply(eliminate_identity, build(text), X)
    assert ops(model) == ["Dropout", "Relu"]


def test_output_keeps_its_name() -> None:
    text = "g (float[4] x) => (float[4] y) { a = Neg(x) \n b = Relu(a) \n y = Identity(a) }"
    model, _ = apply(eliminate_identity, build(text), X)
    assert ops(model) == ["Neg", "Relu"]
    assert model.graph.outputs[0].name == "y"
    assert model.graph[1].inputs[0] is model.graph.outputs[0]


@pytest.mark.parametrize(
    "text",
    [
        "g (float[4] x) => (float[4] y) { y = Identity(x) }",
        "g (float[4] x) => (float[4] y) { y = Identity(w) }",
        "g (float[4] x) => (float[4] a, float[4] y) { a = Neg(x) \n y = Identity(a) }",
    ],
)
def test_identity_between_two_fixed_names_stays(text: str) -> None:
    model, notes = apply(eliminate_identity, build(text, w=random(4)), X)
    assert "Identity" in ops(model)
    assert notes == []


@pytest.mark.parametrize("source", ["w", "x"])
def test_who_reads_the_output_of_an_identity_that_stays_reads_what_is_in_front(source: str) -> None:
    text = f"g (float[4] x) => (float[4] a, float[4] y) {{ a = Identity({source}) \n y = Mul(x, a) }}"
    model, _ = apply(eliminate_identity, build(text, w=random(4)), X)
    (product,) = (node for node in model.graph if node.op_type == "Mul")
    assert product.inputs[1] is not None and product.inputs[1].name == source


def test_branch_that_passes_an_outer_tensor_through() -> None:
    text = """g (float[4] x, bool c) => (float[4] y) {
        t = Neg(x)
        y = If (c) <then_branch = a () => (float[4] p) { p = Identity(t) },
                    else_branch = b () => (float[4] q) { r = Abs(t) \n q = Identity(r) }> }"""
    model, _ = apply(eliminate_identity, build(text), {**X, "c": np.array(True)})
    assert ops(model).count("Identity") == 1


def test_input_that_is_an_output() -> None:
    proto = build("g (float[4] x) => (float[4] y) { y = Identity(x) }")
    proto.graph.output[0].name = "x"
    model = load(proto)
    remove_dead(model)
    assert ops(model) == []
    assert model.graph.outputs[0] is model.graph.inputs[0]


@pytest.mark.parametrize("order", ["a, least", "least, a"])
def test_a_maximum_with_minus_infinity_that_makes_an_output_goes(order: str) -> None:
    text = f"g (float[4] x) => (float[4] y) {{ a = Neg(x) \n y = Max({order}) }}"
    model, _ = apply(eliminate_identity, build(text, least=np.float32(-np.inf)), X)
    assert ops(model) == ["Neg"] and model.graph.outputs[0].name == "y"
