from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import parser
from onnx.numpy_helper import from_array

import onnxq
from onnxq.options import Options

UNITS = np.logspace(-3, 3, 24).astype(np.float32)
"""Of a table's columns."""


def _model(units: np.ndarray) -> onnx.ModelProto:
    """A layer on columns in their units, then another."""
    rng = np.random.default_rng(3)
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[N,24] x) => (float[N,3] y) {
        a = Gemm<transB = 1>(x, w, b)
        r = Relu(a)
        y = Gemm(r, v) }"""
    model = parser.parse_model(text)
    w = rng.normal(size=(64, 24)).astype(np.float32) / units
    arrays = {"w": w, "b": np.zeros(64, np.float32), "v": rng.normal(size=(64, 3)).astype(np.float32)}
    model.graph.initializer.extend(from_array(array, name) for name, array in arrays.items())
    return model


def _data(units: np.ndarray) -> np.ndarray:
    samples = np.random.default_rng(4).normal(size=(40, 1, 24)) * units
    return np.asarray(samples, np.float32)


def test_a_weight_that_undoes_units_is_not_stored_in_integers() -> None:
    made = onnxq.quantize(_model(UNITS), _data(UNITS))
    assert not made.plan.quantized and not made.plan.stored
    assert any("the values it reads differ widely in size" in kept.reason for kept in made.plan.kept_float)
    assert made.verification is not None and made.verification.worst is not None
    assert made.verification.worst[1].sqnr > 60


def test_ordinary_weights_are_stored() -> None:
    ones = np.ones_like(UNITS)
    made = onnxq.quantize(_model(ones), _data(ones))
    assert len(made.plan.stored) == 1
    assert made.verification is not None and made.verification.worst is not None
    assert made.verification.worst[1].sqnr > 30


@pytest.mark.parametrize("bits", [4, 6])
def test_fewer_bits_are_judged_as_such(bits: int) -> None:
    ones = np.ones_like(UNITS)
    assert onnxq.quantize(_model(ones), _data(ones), options=Options(weight_bits=bits)).plan.stored
    assert not onnxq.quantize(_model(UNITS), _data(UNITS), options=Options(weight_bits=bits)).plan.stored
