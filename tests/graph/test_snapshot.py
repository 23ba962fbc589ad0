"""A snapshot shows every kind of change that a pass makes, and nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import onnx_ir as ir
import pytest

from onnxq import Options
from onnxq.backend_choice import backend_named
from onnxq.catalog import backends
from onnxq.errors import ModelError
from onnxq.graph.files.load import load
from onnxq.graph.snapshot import snapshot
from onnxq.graph.traverse import all_graphs, all_nodes
from onnxq.prepare import Prepared
from tests.fuzzing.graphs import generate
from tests.models import build, normal
from tests.targets import GRAPHS


def _model() -> ir.Model:
    return load(
        build(
            """(float[2, 4] x, bool c) => (float[2, 3] y) {
                [m] a = MatMul (x, w)
                [r] r = LeakyRelu <alpha = 0.1> (a)
                [i] y = If (c) <
                    then_branch = t () => (float[2, 3] t0) { [n] t0 = Neg (r) },
                    else_branch = e () => (float[2, 3] e0) { [d] e0 = Identity (r) }
                >
            }""",
            w=normal(4, 3),
        )
    )


def _node(model: ir.Model, name: str) -> ir.Node:
    return next(node for node in all_nodes(model) if node.name == name)


def _insert(model: ir.Model) -> None:
    model.graph.insert_after(_node(model, "m"), [ir.node("Relu", [_node(model, "m").outputs[0]])])


CHANGES: dict[str, Callable[[ir.Model], object]] = {
    "operator": lambda model: setattr(_node(model, "n"), "op_type", "Abs"),
    "name of a node": lambda model: setattr(_node(model, "m"), "name", "other"),
    "name of a tensor": lambda model: setattr(_node(model, "m").outputs[0], "name", "other"),
    "attribute": lambda model: _node(model, "r").attributes.update(alpha=ir.AttrFloat32("alpha", 0.25)),
    "input": lambda model: _node(model, "r").replace_input_with(0, model.graph.inputs[0]),
    "input of a subgraph's node": lambda model: _node(model, "n").replace_input_with(0, model.graph.inputs[0]),
    "new node": _insert,
    "node gone": lambda model: _node(model, "d").graph.remove(_node(model, "d")),  # type: ignore[union-attr]
    "constant": lambda model: setattr(model.graph.initializers["w"], "const_value", ir.tensor(np.ones((4, 3)))),
    "new constant": lambda model: model.graph.register_initializer(
        ir.Value(name="k", const_value=ir.tensor(np.ones(1), name="k"))
    ),
    "shape": lambda model: setattr(_node(model, "m").outputs[0], "shape", ir.Shape([2, None])),
    "type": lambda model: setattr(_node(model, "m").outputs[0], "type", ir.TensorType(ir.DataType.FLOAT16)),
    "mark on a node": lambda model: _node(model, "m").meta.update(mark=True),
    "mark on a tensor": lambda model: _node(model, "m").outputs[0].meta.update(mark=True),
    "output": lambda model: model.graph.outputs.append(_node(model, "m").outputs[0]),
    "opset": lambda model: model.opset_imports.update({"": 99}),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_change_is_seen(kind: str) -> None:
    model = _model()
    before = snapshot(model)
    assert snapshot(model) == before
    CHANGES[kind](model)
    assert snapshot(model) != before


def _all_of(model: ir.Model) -> tuple[bytes, list[str]]:
    """What is written of a model, and what is known of it besides."""
    values = [value for graph in all_graphs(model) for value in (*graph.inputs, *graph.initializers.values())]
    values += [value for node in all_nodes(model) for value in node.outputs]
    known = [f"{value.name} {value.type} {value.shape} {dict(value.meta)}" for value in values]
    known += [f"{node.name} {dict(node.meta)}" for node in all_nodes(model)]
    return ir.to_proto(model).SerializeToString(deterministic=True), known


@pytest.fixture(scope="module")
def models() -> list[ir.Model]:
    found = [*(graph() for graph in GRAPHS.values()), *(generate(seed).model for seed in range(2000, 2008))]
    return [Prepared(proto, Options()).model for proto in found]


def test_targets_change_something_where_the_snapshot_says_so(models: list[ir.Model]) -> None:
    outcomes = Counter[bool]()
    for name, rewrite in {target.name: target.rewrite for target in backends() if target.rewrite is not None}.items():
        for model in models:
            copy = model.clone()
            before, known = snapshot(copy), _all_of(copy)
            with suppress(ModelError):
                rewrite(copy)
            outcomes[snapshot(copy) == before] += 1
            assert (snapshot(copy) == before) == (_all_of(copy) == known), name
    assert min(outcomes[True], outcomes[False]) >= 10


@pytest.mark.parametrize("name", ["onnxruntime", "openvino", "tengine", "rknn", "tvm"])
def test_a_target_that_has_nothing_to_rewrite_takes_the_model_that_was_calibrated(name: str) -> None:
    text = "(float[N, 4] x) => (float[N, 4] y) { a = Relu (x) \n b = Add (a, w) \n y = Clip (b, low, high) }"
    target = backend_named(name)
    assert target.rewrite is not None
    prepared = Prepared(build(text, w=np.ones(4, np.float32), low=np.float32(0), high=np.float32(6)), Options())
    assert prepared.for_target(target, Options())[0] is prepared.model


def test_a_target_that_rewrites_gets_a_model_of_its_own() -> None:
    text = "(float[1, 4, 8, 8] x) => (float[1, 4, 1, 1] y) { y = GlobalAveragePool (x) }"
    prepared = Prepared(build(text), Options())
    model, notes = prepared.for_target(backend_named("vitis"), Options())
    assert model is not prepared.model and notes
    assert [node.op_type for node in prepared.model.graph] == ["GlobalAveragePool"]
