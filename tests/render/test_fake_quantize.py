"""The FakeQuantize function in plain onnxruntime against onnxq's own arithmetic, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

from onnxq.ort.session import Session
from onnxq.qparams import QParams, fake_quantize
from onnxq.ranged import from_range
from onnxq.render import fake_quantize as function
from onnxq.spec import PerChannel, PerTensor, QuantSpec


def run(x: NDArray[np.float32], qparams: QParams) -> NDArray[Any]:
    """The function applied to ``x`` in onnxruntime."""
    value = ir.Value(name="x", shape=ir.Shape(x.shape), type=ir.TensorType(ir.DataType.FLOAT))
    shape = [1] * x.ndim
    if isinstance(qparams.spec.granularity, PerChannel):
        shape[qparams.spec.granularity.axis] = -1
    else:
        shape = []
    parameters = []
    for name, array in (("scale", qparams.scale), ("zero", qparams.zero_point)):
        tensor = ir.tensor(array.astype(np.float32).reshape(shape), name=name)
        parameters.append(
            ir.Value(name=name, shape=tensor.shape, type=ir.TensorType(ir.DataType.FLOAT), const_value=tensor)  # type: ignore[arg-type]
        )
    node = function.node(value, parameters[0], parameters[1], qparams.spec, "f")
    node.outputs[0].name = "y"
    node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    node.outputs[0].shape = ir.Shape(x.shape)
    graph = ir.Graph([value], node.outputs, nodes=[node], initializers=parameters, opset_imports={"": 17}, name="g")
    model = ir.Model(graph, ir_version=8)
    function.register(model)
    return Session(model, optimize=False).run({"x": x})["y"]


@pytest.mark.parametrize("bits", range(2, 17))
@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("narrow", [False, True])
def test_equal_bit_for_bit(bits: int, signed: bool, narrow: bool) -> None:
    rng = np.random.default_rng(bits)
    x = (rng.standard_normal((3, 50)) * 3).astype(np.float32)
    spec = QuantSpec(bits, signed, symmetric=signed, granularity=PerTensor(), narrow_range=narrow and signed)
    qparams = from_range(-2.0, 3.5, spec)
    np.testing.assert_array_equal(run(x, qparams), fake_quantize(x, qparams))


@pytest.mark.parametrize("axis", [0, 1])
def test_per_channel(axis: int) -> None:
    x = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    spec = QuantSpec(5, granularity=PerChannel(axis))
    high = np.linspace(0.5, 2.0, x.shape[axis])
    qparams = from_range(-high, high, spec)
    np.testing.assert_array_equal(run(x, qparams), fake_quantize(x, qparams))


def test_registered_once() -> None:
    model = ir.Model(ir.Graph([], [], nodes=[], opset_imports={"": 17}), ir_version=8)
    function.register(model)
    function.register(model)
    assert len(model.functions) == 1
    assert model.opset_imports["onnxq"] == 1
