from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxq.graph.files.load import load
from onnxq.graph.passes.defaults import drop_initializer_inputs
from onnxq.graph.passes.normalize import normalize
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


def test_all_initializers_listed_is_an_exporter_that_still_lists_them() -> None:
    made = build(
        "g (float[4] x, float[4] w, float[4] v) => (float[4] y) { a = Add(x, w) \n y = Mul(a, v) }",
        ir_version=7,
        w=random(4, seed=1),
        v=random(4, seed=2),
    )
    model = load(made)
    (note,) = drop_initializer_inputs(model)
    assert [value.name for value in model.graph.inputs] == ["x"]
    assert model.ir_version == 7
    assert "2 initializers" in note.message
    expected = run(made, {"x": random(4)})
    assert (run(ir.serde.serialize_model(model), {"x": random(4)})[0] == expected[0]).all()
    del made.graph.input[2]
    kept = load(made)
    assert [note.node for note in drop_initializer_inputs(kept)] == ["w"]
    assert [value.name for value in kept.graph.inputs] == ["x", "w"]


def of_layers(*listed: str) -> onnx.ModelProto:
    """Two layers, one with a quantized weight, and a Mul: as Brevitas exports, where all parameters are listed."""
    shapes = {"b": "4", "v": "4, 4, 1, 1", "a": "4"}
    inputs = "".join(f", float[{shapes[name]}] {name}" for name in listed)
    return build(
        f"""g (float[1, 4, 4, 4] x{inputs}) => (float[1, 4, 4, 4] y) {{
            w = DequantizeLinear <axis = 0> (codes, scales)
            h = Conv (x, w, b)  k = Mul (h, c)  y = Conv (k, v, a)
        }}""",
        ir_version=8,
        opset=17,
        codes=np.arange(16, dtype=np.int8).reshape(4, 4, 1, 1),
        scales=np.full(4, 0.1, np.float32),
        b=random(4, seed=1),
        c=np.float32(2.0).reshape(1, 1),
        v=random(4, 4, 1, 1, seed=2),
        a=random(4, seed=3),
    )


def test_parameters_of_all_layers_listed_is_an_exporter_too() -> None:
    made = of_layers("b", "v", "a")
    model = load(made)
    drop_initializer_inputs(model)
    assert [value.name for value in model.graph.inputs] == ["x"]
    feeds = {"x": random(1, 4, 4, 4)}
    assert (run(ir.serde.serialize_model(model), feeds)[0] == run(made, feeds)[0]).all()


@pytest.mark.parametrize("listed", [("b",), ("v", "a"), ("b", "v")])
def test_parameters_of_some_layers_are_defaults(listed: tuple[str, ...]) -> None:
    model = load(of_layers(*listed))
    drop_initializer_inputs(model)
    assert [value.name for value in model.graph.inputs] == ["x", *listed]


@pytest.mark.parametrize("opset", [17, 20])
def test_a_default_stays_one_when_the_other_initializers_are_gone(opset: int) -> None:
    made = build(
        """g (float[1, 1, 4, 4] x, float[4, 4] w, float[4] v) => (float[1, 1, 2, 2] y) {
            a = Add(x, w) \n b = Mul(a, v) \n gone = Neg(c) \n y = AveragePool <kernel_shape = [3, 3]> (b)
        }""",
        ir_version=8,
        opset=17,
        w=random(4, 4, seed=1),
        v=random(4, seed=2),
        c=random(3),
    )
    model = load(made)
    normalize(model, min_opset=17)
    assert "c" not in model.graph.initializers
    again = model.clone()
    normalize(again, min_opset=opset)
    assert again.opset_imports[""] == opset
    assert [value.name for value in again.graph.inputs] == ["x", "w", "v"]
    normalize(again, min_opset=opset)
    assert [value.name for value in again.graph.inputs] == ["x", "w", "v"]
