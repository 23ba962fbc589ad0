"""Whether a model was changed in place is told by what it consists of."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest

from onnxq.backend import Backend
from onnxq.backend_choice import backend_named
from onnxq.graph.parts import Parts
from onnxq.options import Options
from onnxq.prepare import Prepared
from tests.models import build

TEXT = "(float[N, 4] x) => (float[N, 4] y) { a = Relu (x) \n b = Add (a, w) \n y = Clip (b, low, high) }"


def net() -> ir.Model:
    values = {"w": np.ones(4, np.float32), "low": np.float32(0), "high": np.float32(6)}
    return ir.from_proto(build(TEXT, **values))


def _no_clip(model: ir.Model) -> None:
    model.graph[1].replace_input_with(0, model.graph.inputs[0])


def _other_constant(model: ir.Model) -> None:
    model.graph.initializers["w"].const_value = ir.tensor(np.zeros(4, np.float32))


def _operator(model: ir.Model) -> None:
    model.graph[0].op_type = "Elu"


def _attribute(model: ir.Model) -> None:
    model.graph[0].attributes["alpha"] = ir.AttrFloat32("alpha", 1.0)


def _renamed(model: ir.Model) -> None:
    model.graph[0].outputs[0].name = "other"


def _mark(model: ir.Model) -> None:
    model.graph[0].meta["mark"] = True


def _dropped(model: ir.Model) -> None:
    model.graph.outputs[0] = model.graph[1].outputs[0]
    model.graph.remove(model.graph[2], safe=False)


CHANGES = [_no_clip, _other_constant, _operator, _attribute, _renamed, _mark, _dropped]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen(change: Callable[[ir.Model], None]) -> None:
    model = net()
    parts = Parts(model)
    assert parts.are_the_same
    change(model)
    assert not parts.are_the_same


@pytest.mark.parametrize("name", ["onnxruntime", "openvino", "tengine", "rknn", "tvm"])
def test_a_target_that_has_nothing_to_rewrite_takes_the_model_that_was_calibrated(name: str) -> None:
    target: Backend = backend_named(name)
    assert target.rewrite is not None
    prepared = Prepared(net(), Options())
    assert prepared.for_target(target, Options())[0] is prepared.model


def test_a_target_that_rewrites_gets_a_model_of_its_own() -> None:
    text = "(float[1, 4, 8, 8] x) => (float[1, 4, 1, 1] y) { y = GlobalAveragePool (x) }"
    prepared = Prepared(build(text), Options())
    model, notes = prepared.for_target(backend_named("vitis"), Options())
    assert model is not prepared.model and notes
    assert [node.op_type for node in prepared.model.graph] == ["GlobalAveragePool"]
