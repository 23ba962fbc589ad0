"""A GridSample for which onnxruntime has no fast kernel is written as one for which it has."""

from __future__ import annotations

import numpy as np
import pytest

from tests.backends.test_onnxruntime_fast_floats import made, ops
from tests.graph.helpers import run
from tests.models import build, normal

WARP = """(float[{0}] x, float[1, 40, 30, 2] g) => (float[a, b, c, d] y) {{
    y = GridSample <mode = "{1}", {2}> (x, g)
}}"""
SIZES = "1, 4, 24, 20"


def feeds(scale: float = 0.8) -> dict[str, np.ndarray]:
    """Places, many of which lie outside, at edges and at corners."""
    grid = normal(1, 40, 30, 2, seed=1, scale=scale)
    grid[0, 0, :4] = [[-1, -1], [1, 1], [-1, 1], [0, 1]]
    return {"x": normal(1, 4, 24, 20, scale=1.0), "g": grid}


@pytest.mark.parametrize("padding", ["zeros", "border"])
@pytest.mark.parametrize("aligned", [0, 1])
@pytest.mark.parametrize(("opset", "mode"), [(16, "bilinear"), (20, "linear")])
def test_it_computes_the_same(padding: str, aligned: int, opset: int, mode: str) -> None:
    attributes = f'padding_mode = "{padding}", align_corners = {aligned}'
    model = build(WARP.format(SIZES, mode, attributes), opset=opset)
    result = made(model, [feeds()] * 2)
    (node,) = [node for node in result.graph.node if node.op_type == "GridSample"]
    assert {a.name for a in node.attribute} <= (
        {"mode"} if aligned or padding == "border" else {a.name for a in node.attribute}
    )
    for scale in (0.8, 0.3, 3.0):
        given = feeds(scale)
        np.testing.assert_allclose(run(result, given)[0], run(model, given)[0], rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("channels", [3, 4])
def test_a_grid_of_unknown_width_is_moved_for_several_channels(channels: int) -> None:
    text = WARP.format(f"1, {channels}, 24, 20", "linear", 'align_corners = 1, padding_mode = "border"')
    model = build(text.replace("40, 30, 2", "n, m, 2"), opset=20)
    given = {**feeds(), "x": feeds()["x"][:, :channels]}
    result = made(model, [given] * 2)
    assert ops(result)["Mul"] == (channels == 4)
    np.testing.assert_allclose(run(result, given)[0], run(model, given)[0], rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(
    ("sizes", "mode", "attributes"),
    [
        ("1, 4, h, 20", "linear", "align_corners = 1"),
        (SIZES, "nearest", "align_corners = 1"),
        (SIZES, "linear", 'padding_mode = "reflection"'),
        (SIZES, "linear", 'padding_mode = "zeros"'),
    ],
)
def test_others_stay(sizes: str, mode: str, attributes: str) -> None:
    model = build(WARP.format(sizes, mode, attributes), opset=20)
    assert ops(made(model, [feeds()] * 2)) == {"GridSample": 1}
