from __future__ import annotations

import onnx
import onnx_ir as ir

from onnxq.graph.defaults import drop_initializer_inputs
from onnxq.graph.load import load
from onnxq.graph.values import is_constant
from tests.graph.helpers import build, random, run


def proto(ir_version: int) -> onnx.ModelProto:
    return build(
        "g (float[4] x, float[4] w) => (float[4] y) { y = Add(x, w) }",
        ir_version=ir_version,
        opset=8,
        w=random(4, seed=1),
    )


def test_old_format_lists_constants_as_inputs() -> None:
    model = load(proto(3))
    notes = drop_initializer_inputs(model)
    assert model.ir_version == 8
    assert [value.name for value in model.graph.inputs] == ["x"]
    assert is_constant(model.graph.initializers["w"])
    assert "1 initializers" in notes[0].message
    assert drop_initializer_inputs(model) == []


def test_default_of_an_input_stays_overridable() -> None:
    model = load(proto(4))
    notes = drop_initializer_inputs(model)
    assert [value.name for value in model.graph.inputs] == ["x", "w"]
    assert not is_constant(model.graph.initializers["w"])
    assert [note.node for note in notes] == ["w"]
    other = random(4, seed=2)
    got = run(ir.serde.serialize_model(model), {"x": random(4), "w": other})
    assert (got[0] == random(4) + other).all()
