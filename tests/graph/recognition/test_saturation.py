"""Bounds beyond which the readers of a tensor give next to the same, against the functions as onnxruntime runs them."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
import pytest

from onnxq.graph.recognition.saturation import bounds
from tests.models import build
from tests.running import open_session

CALLS = (
    *("Celu <alpha = 2.0> (t)", "Clip (t, low, high)", "Elu <alpha = 1.5> (t)", "Erf (t)", "Gelu (t)"),
    *('Gelu <approximate = "tanh"> (t)', "HardSigmoid (t)", "HardSigmoid <alpha = 0.5, beta = 0.1> (t)"),
    *("HardSwish (t)", "Relu (t)", "Selu (t)", "Sigmoid (t)", "Softplus (t)", "Tanh (t)"),
)


def model(*body: str, outputs: str = "float[n] y", **more: np.ndarray) -> ir.Model:
    lines = "\n".join(("t = Neg (x)", *body))
    constants = {"low": np.float32(-2), "high": np.float32(5), "shape": np.array([-1]), **more}
    return ir.from_proto(build(f"(float[n] x) => ({outputs}) {{ {lines} }}", opset=20, **constants))


def found(of: ir.Model, bits: int = 8) -> tuple[float, float]:
    return bounds(next(v for node in of.graph for v in node.outputs if v.name == "t"), bits)


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("call", CALLS)
def test_beyond_them_nothing_changes(call: str, bits: int) -> None:
    function = model(f"y = {call}")
    low, high = found(function, bits)
    assert math.isfinite(low) or math.isfinite(high)
    session = open_session(ir.to_proto(function))
    x = np.linspace(-40, 40, 8001, dtype=np.float32)
    exact, clipped = (session.run(None, {"x": -v})[0] for v in (x, np.clip(x, low, high).astype(np.float32)))
    assert np.abs(exact - clipped).max() < 2 * 2.0 ** -(bits + 3)
    if math.isfinite(low) and low < 0:
        inner = session.run(None, {"x": -np.clip(x, 0.25 * low, high).astype(np.float32)})[0]
        assert np.abs(exact - inner).max() > 2.0**-bits, "the bound is not farther out than it has to be"


def test_what_only_moves_numbers_is_looked_through() -> None:
    moved = ("u = Reshape (t, shape)", "v = Identity (u)", "y = Elu (v)")
    assert found(model(*moved)) == found(model("y = Elu (t)"))


def test_all_readers_count() -> None:
    both = model("a = Tanh (t)", "b = Elu (t)", "y = Add (a, b)")
    assert found(both) == found(model("y = Elu (t)"))
    for other in ("b = Sin (t)", "b = Mul (a, t)", "b = Max (a, t)"):
        assert found(model("a = Tanh (t)", other, "y = Add (a, b)")) == (-math.inf, math.inf)


def test_an_output_has_none() -> None:
    assert found(model("y = Tanh (t)", outputs="float[n] y, float[n] t")) == (-math.inf, math.inf)
    assert found(model("u = Identity (t)", "y = Tanh (t)", outputs="float[n] y, float[n] u")) == (-math.inf, math.inf)
    assert bounds(None, 8) == (-math.inf, math.inf)


def test_a_bound_that_is_no_constant() -> None:
    assert found(model("m = ReduceMin (t)", "y = Clip (t, m)")) == (-math.inf, math.inf)
