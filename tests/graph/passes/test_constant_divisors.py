from __future__ import annotations

import numpy as np
import pytest

import onnxq
from onnxq.graph.passes.constant_divisors import constant_divisors
from onnxq.graph.traverse import all_nodes
from tests.graph.helpers import apply, build, ops
from tests.models import build as build_model
from tests.models import verified_sqnr

FREQUENCIES = (10000.0 ** (np.arange(16) / 16)).astype(np.float32)


def test_a_division_by_constants_is_a_product() -> None:
    feeds = {"x": np.linspace(-6, 6, 64, dtype=np.float32).reshape(4, 16)}
    proto = build(
        "g (float[n,16] x) => (float[n,16] y, float[n,16] z) { [scaled] y = Div(x, d) \n z = Sin(y) }", d=FREQUENCIES
    )
    model, notes = apply(constant_divisors, proto, feeds, tolerance=1e-6)
    assert ops(model) == ["Mul", "Sin"]
    assert [note.message for note in notes] == ["1 divisions by constants are products"]
    assert next(iter(all_nodes(model))).name == "scaled"


@pytest.mark.parametrize(
    ("expression", "divisor"),
    [
        ("Div(x, d)", np.array(1.4142135, np.float32)),  # one number is exact in any bits
        ("Div(x, d)", np.array([2, 0], np.float32)),
        ("Div(x, d)", np.array([2, np.inf], np.float32)),
        ("Div(x, d)", np.array([2, 3e38], np.float32)),  # its reciprocal is no normal number
        ("Div(d, x)", np.array([2, 4], np.float32)),
    ],
    ids=["scalar", "zero", "infinite", "huge", "divided"],
)
def test_others_stay(expression: str, divisor: np.ndarray) -> None:
    feeds = {"x": np.array([[1.0, -3.0]], np.float32)}
    model, notes = apply(
        constant_divisors, build(f"g (float[1,2] x) => (float[1,2] y) {{ y = {expression} }}", d=divisor), feeds
    )
    assert ops(model) == ["Div"]
    assert not notes


@pytest.mark.parametrize("backend", ["qnn", "snpe", "rknn", "tengine"])
def test_a_position_embedding_survives_8_bits(backend: str) -> None:
    """Places over frequencies from 1 to 10000: with divisors in 8 bits, a third of them is divided by 0."""
    model = build_model(
        """(float[1, 16, 1] x) => (float[1, 16, 32] y) {
            a = Div (x, d)
            s = Sin (a)
            c = Cos (a)
            y = Concat <axis = 2> (s, c)
        }""",
        d=FREQUENCIES,
    )
    data = [{"x": np.random.default_rng(k).uniform(0.0, 6.28, (1, 16, 1)).astype(np.float32)} for k in range(32)]
    result = onnxq.quantize(model, data, backend=backend, options=onnxq.Options(effort="fast"))
    assert verified_sqnr(result) > 25.0
