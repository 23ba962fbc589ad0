from __future__ import annotations

import numpy as np
import pytest

from onnxq.graph.passes.normalize import normalize
from tests.graph.helpers import Array, apply, build, ops, random
from tests.models import f32, i64

NUMBERS: dict[str, Array] = {
    "gamma": f32([1, -2, 0.5]),
    "beta": random(3),
    "mean": random(3),
    "var": np.abs(random(3)) + f32(0.5),
    "w": random(4, 3),
    "rows": i64([-1, 3]),
}


@pytest.mark.parametrize("flat", ["Flatten<axis = 2>(a)", "Reshape(a, rows)"])
@pytest.mark.parametrize("batch", ["2", "n"])
def test_folded_into_the_product(flat: str, batch: str) -> None:
    text = f"""g (float[{batch},5,4] x) => (float[{batch},5,3] y) {{
        a = MatMul(x, w) \n b = {flat} \n c = BatchNormalization(b, gamma, beta, mean, var)
        s = Shape(a) \n y = Reshape(c, s) }}"""
    model, _ = apply(normalize, build(text, **NUMBERS), {"x": random(2, 5, 4)})
    assert "BatchNormalization" not in ops(model)
    assert "Mul" not in ops(model)


@pytest.mark.parametrize(
    "body",
    [
        "a = MatMul(x, w) \n b = Reshape(a, swapped) \n y = BatchNormalization(b, gamma, beta, mean, var)",
        "a = Tanh(z) \n b = Reshape(a, rows) \n y = BatchNormalization(b, gamma, beta, mean, var)",
    ],
)
def test_what_stays(body: str) -> None:
    text = f"g (float[2,6,4] x, float[2,6,3] z) => (float[r,c] y) {{ {body} }}"
    if "swapped" in body:
        body_w = {**NUMBERS, "w": random(4, 6), "swapped": i64([-1, 3])}
    else:
        body_w = NUMBERS
    model, _ = apply(normalize, build(text, **body_w), {"x": random(2, 6, 4), "z": random(2, 6, 3)})
    assert "BatchNormalization" in ops(model)
