"""A RMSNorm is written in the form that onnxruntime makes one operator of, and other squares and roots are left."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.backends.test_onnxruntime_fast_floats import assert_same, made, ops
from tests.models import build, f32, feeds_for, normal
from tests.running import optimized


@pytest.mark.parametrize("square", ["Mul (x, x)", "Pow (x, two)"])
@pytest.mark.parametrize("inverse", ["Reciprocal (r)", "Div (one, r)", "Pow (a, half)"])
def test_a_root_mean_square_norm_is_one_operator_in_onnxruntime(square: str, inverse: str, tmp_path: Path) -> None:
    text = f"""(float[300, 512] x) => (float[300, 512] y) {{
        s = {square}
        m = ReduceMean <axes = [-1]> (s)
        a = Add (m, e)
        {"" if "half" in inverse else "r = Sqrt (a)"}
        i = {inverse}
        c = Mul (x, i)
        y = Mul (c, w)
    }}"""
    model = build(text, e=f32(1e-6), one=f32(1), two=f32(2), half=f32(-0.5), w=normal(512))
    feeds = feeds_for(model)
    result = made(model, feeds)
    assert_same(model, result, feeds[0]["x"])
    assert ops(optimized(result, tmp_path)) == {"SimplifiedLayerNormalization": 1}


@pytest.mark.parametrize(
    ("rows", "axis", "behind"),
    [
        ("300", "-1", "i = Reciprocal (r)\n y = Mul (x, i)"),
        ("300", "-1", "y = Div (x, r)"),
        ("300", "-1", "i = Reciprocal (r)\n c = Mul (x, i)\n y = Mul (c, tall)"),
        ("300", "0", "i = Reciprocal (r)\n c = Mul (x, i)\n y = Mul (c, w)"),
        ("300", "-1", "i = Div (two, r)\n c = Mul (x, i)\n y = Mul (c, w)"),
        ("30", "-1", "i = Pow (a, half)\n c = Mul (x, i)\n y = Mul (c, w)"),
    ],
)
def test_a_square_stays_where_onnxruntime_makes_no_norm_of_it(rows: str, axis: str, behind: str) -> None:
    """A Pow takes two to three times as long there, and a division 1.2 times as long as a product."""
    text = f"""(float[{rows}, 512] x) => (float[{rows}, 512] y) {{
        s = Mul (x, x)
        m = ReduceMean <axes = [{axis}]> (s)
        a = Add (m, e)
        {"" if "half" in behind else "r = Sqrt (a)"}
        {behind}
    }}"""
    model = build(text, e=f32(1e-6), two=f32(2), half=f32(-0.5), w=normal(512), tall=normal(int(rows), 512))
    assert ops(made(model, feeds_for(model))) == ops(model)


def test_a_square_that_is_read_twice_and_other_reciprocals_stay() -> None:
    model = build(
        """(float[1, 512] x) => (float[1, 1] y, float[1, 512] z, float[1, 512] i) {
            z = Mul (x, x)
            y = ReduceMean <axes = [-1]> (z)
            e = Exp (x)
            i = Reciprocal (e)
        }"""
    )
    assert ops(made(model, feeds_for(model))) == {"Mul": 1, "ReduceMean": 1, "Exp": 1, "Reciprocal": 1}
