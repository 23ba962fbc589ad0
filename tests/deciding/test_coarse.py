from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import parser
from onnx.numpy_helper import from_array

import onnxq
from onnxq.calibration.statistics import KeptSample
from onnxq.deciding.coarse import coarse_weights
from onnxq.options import Options
from onnxq.plan import Edge, Plan, Site
from onnxq.ranged import from_range
from onnxq.spec import QuantSpec
from tests.models import build, verified_sqnr

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
    assert verified_sqnr(made) > 60


def test_ordinary_weights_are_stored() -> None:
    ones = np.ones_like(UNITS)
    made = onnxq.quantize(_model(ones), _data(ones))
    assert len(made.plan.stored) == 1
    assert verified_sqnr(made) > 30


@pytest.mark.parametrize("bits", [4, 6])
def test_fewer_bits_are_judged_as_such(bits: int) -> None:
    ones = np.ones_like(UNITS)
    assert onnxq.quantize(_model(ones), _data(ones), options=Options(weight_bits=bits)).plan.stored
    assert not onnxq.quantize(_model(UNITS), _data(UNITS), options=Options(weight_bits=bits)).plan.stored


WEIGHT = np.array([[100.0, 50.0], [1.3, 0.9]], np.float32)
"""With a scale of 100 / 127, the second input is read at 0.79 in place of 1.3 and 0.9."""


def judged(
    weight: np.ndarray, rows: Sequence[Sequence[float]], *, bits: int = 8, op: str = "Gemm", stored: bool = True
) -> dict[str, str]:
    """What is said of a layer with such a weight, of a grid for [-100, 100], that reads ``rows``, one a sample."""
    model = ir.from_proto(build(f"(float[1, 2] x) => (float[1, 2] y) {{ [layer] y = {op} (x, w) }}", w=weight))
    spec = QuantSpec(bits=bits)
    site = Site("w", "w", "weight", spec, (Edge("layer", 1),))
    role = {"layer": op}
    plan = Plan("onnxruntime", (site,), {} if stored else role, stored=role if stored else {})
    samples = [KeptSample(k, {}, {}, {"x": np.array(row)} if row else {}) for k, row in enumerate(rows)]
    return coarse_weights(model, plan, {"w": from_range(-100.0, 100.0, spec)}, samples)


def left(rows: Sequence[Sequence[float]]) -> float:
    """dB that a scale of 100 / 127 leaves of what differs between the rows' outputs."""
    stored = np.round(WEIGHT * 1.27) / 1.27
    exact, got = (np.array(rows) @ w for w in (WEIGHT, stored))
    signal, noise = (a - a.mean(axis=0) for a in (exact, got - exact))
    return float(10 * np.log10(np.square(signal).sum() / np.square(noise).sum()))


def test_what_all_samples_share_does_not_hide_what_differs() -> None:
    small, both = [[3.0, 1.0], [3.0, -1.0], [3.0, 2.0]], [[3.0, 1.0], [-3.0, -1.0], [5.0, 2.0]]
    assert left(small) < 25 < left(both)
    assert f"would leave {left(small):.0f} dB of its output" in judged(WEIGHT, small)["layer"]
    assert not judged(WEIGHT, both)
    assert not judged(WEIGHT, [[3.0, 1.0]]), "of a single sample all counts"
    assert judged(WEIGHT, [[0.0, 1.0]])


def test_only_what_is_read_by_a_stored_gemm_is_judged() -> None:
    rows = [[3.0, 1.0], [3.0, -1.0]]
    assert judged(WEIGHT, rows)
    assert judged(WEIGHT, [[], *rows]), "of a sample without means nothing is known"
    assert not judged(WEIGHT, [[], []])
    assert not judged(WEIGHT, rows, stored=False)
    assert not judged(WEIGHT, rows, op="MatMul")
    assert not judged(WEIGHT, [[3.0, 1.0], [3.0, 1.0]]), "nothing differs"
    assert not judged(np.zeros((2, 2), np.float32), rows)


@pytest.mark.parametrize("bits", [8, 6, 4])
def test_each_bit_less_may_leave_5_db_less(bits: int) -> None:
    """Noise of a known power: a single weight that misses the grid by a known share."""
    scale, limit = 100.0 / (2 ** (bits - 1) - 1), 25.0 - 5.0 * (8 - bits)
    for over, found in ((0.5, False), (-0.5, True)):
        miss = 10 ** (-(limit + over) / 20)  # of the weight, which is stored as one step
        weight = np.array([[scale / (1 + miss), 0.0], [0.0, 0.0]], np.float32)
        assert math.isclose(scale - weight[0, 0], miss * weight[0, 0], rel_tol=1e-4)
        assert bool(judged(weight, [[1.0, 0.0], [-1.0, 0.0]], bits=bits)) == found
