from __future__ import annotations

import numpy as np
import pytest

from onnxq.graph.passes.gemm import fold_gemm
from tests.graph.helpers import apply, build, ops, random

B, C = random(4, 5), random(5, seed=1)


@pytest.mark.parametrize("trans", [0, 1])
@pytest.mark.parametrize(("alpha", "beta"), [(2.0, 1.0), (1.0, 0.5), (-0.3, 3.0), (2.0, 0.0)])
def test_folded(alpha: float, beta: float, trans: int) -> None:
    text = (
        f"g (float[3,4] x) => (float[3,5] y) {{ y = Gemm<alpha = {alpha}, beta = {beta}, transB = {trans}>(x, b, c) }}"
    )
    proto = build(text, b=B.T.copy() if trans else B, c=C)
    model, notes = apply(fold_gemm, proto, {"x": random(3, 4, seed=2)}, tolerance=2e-6)
    attributes = model.graph[0].attributes
    assert attributes.get_float("alpha", 1.0) == attributes.get_float("beta", 1.0) == 1.0
    assert attributes.get_int("transB", 0) == trans
    assert len(model.graph[0].inputs) == (2 if beta == 0 else 3)
    assert notes == []


def test_plain_gemm_is_untouched() -> None:
    model, _ = apply(
        fold_gemm, build("g (float[3,4] x) => (float[3,5] y) { y = Gemm(x, b, c) }", b=B, c=C), {"x": random(3, 4)}
    )
    assert dict(model.graph[0].attributes) == {}


def test_beta_without_c() -> None:
    text = "g (float[3,4] x) => (float[3,5] y) { y = Gemm<beta = 0.5>(x, b) }"
    model, notes = apply(fold_gemm, build(text, b=B), {"x": random(3, 4)})
    assert (len(model.graph[0].inputs), notes) == (2, [])


@pytest.mark.parametrize(
    ("node", "reason"), [("Gemm<alpha = 2.0>(x, z, c)", "alpha=2"), ("Gemm<beta = 0.5>(x, b, v)", "beta=0.5")]
)
def test_factor_of_what_is_not_constant_stays(node: str, reason: str) -> None:
    text = f"g (float[3,4] x, float[4,5] z, float[5] v) => (float[3,5] y) {{ y = {node} }}"
    feeds = {"x": random(3, 4), "z": random(4, 5), "v": random(5)}
    model, notes = apply(fold_gemm, build(text, b=B, c=C), feeds)
    assert reason in notes[0].message
    assert ops(model) == ["Gemm"]


def test_shared_weight_is_copied() -> None:
    text = "g (float[3,4] x) => (float[3,5] y, float[3,5] z) { y = Gemm<alpha = 2.0>(x, b) \n z = MatMul(x, b) }"
    model, _ = apply(fold_gemm, build(text, b=B), {"x": random(3, 4)}, tolerance=2e-6)
    np.testing.assert_array_equal(np.asarray(model.graph.initializers["b"].const_value), B)


@pytest.mark.parametrize("trans", [0, 1])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_one_number_becomes_a_row(shape: tuple[int, ...], trans: int) -> None:
    text = f"g (float[3,4] x) => (float[3,5] y) {{ y = Gemm<transB = {trans}>(x, b, c) }}"
    proto = build(text, b=B.T.copy() if trans else B, c=np.full(shape, 0.25, np.float32))
    model, _ = apply(fold_gemm, proto, {"x": random(3, 4)})
    row = model.graph[0].inputs[2]
    assert row is not None and row.const_value is not None and row.const_value.numpy().tolist() == [0.25] * 5
