"""A cubic Resize, and one of volumes, is written as products or otherwise, and computes the same."""

from __future__ import annotations

import numpy as np
import pytest

from tests.backends.test_onnxruntime_fast_floats import assert_same, made, ops
from tests.graph.helpers import run
from tests.models import build, f32, feeds_for

CUBIC = """(float[{0}] x) => (float[a, b, c, d] y) {{
    y = Resize <mode = "cubic", {1}> (x, , {2})
}}"""


@pytest.mark.parametrize("mode", ["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"])
@pytest.mark.parametrize("given", [[1, 1, 2, 2.7], [1, 1, 0.5, 1.5], [1, 3, 40, 31]], ids=str)
@pytest.mark.parametrize("more", ["cubic_coeff_a = -0.5", "exclude_outside = 1", "antialias = 1"])
@pytest.mark.parametrize("batch", ["1", "n"])
def test_a_cubic_resize_is_two_products(mode: str, given: list[float], more: str, batch: str) -> None:
    by_sizes = given[1] != 1
    if by_sizes:
        batch = "1"  # the size says it
    numbers = np.array(given) if by_sizes else f32(given)
    attributes = f'coordinate_transformation_mode = "{mode}", {more}'
    model = build(CUBIC.format(f"{batch}, 3, 32, 28", attributes, ", s" if by_sizes else "s"), s=numbers, opset=18)
    feeds = feeds_for(model, n=1)
    result = made(model, feeds)
    found = ops(result)
    assert (found["MatMul"], found["Transpose"], found["Resize"]) == (2, 2 if batch == "n" else 0, 0)
    assert_same(model, result, feeds[0]["x"], 1e-5)
    if batch == "n":
        for n in (0, 3):
            assert_same(model, result, feeds_for(model, n=n)[0]["x"], 1e-5)


@pytest.mark.parametrize("mode", ["half_pixel", "asymmetric", "pytorch_half_pixel"])
@pytest.mark.parametrize("factor", [2, 3, 4])
@pytest.mark.parametrize("shape", ["n, 3, h, w", "1, 1, 200, 200"])
def test_a_cubic_resize_of_unknown_or_large_size_is_a_convolution(mode: str, factor: int, shape: str) -> None:
    attributes = f'coordinate_transformation_mode = "{mode}"'
    model = build(CUBIC.format(shape, attributes, "s"), s=f32([1, 1, factor, factor]))
    result = made(model, feeds_for(model, n=1, h=32, w=28))
    assert ops(result) == {"Pad": 1, "Conv": 1, "DepthToSpace": 1}
    tolerance = 1e-4 if factor == 3 else 2e-5  # thirds are rounded
    assert_same(model, result, feeds_for(model, n=1, h=32, w=28)[0]["x"], tolerance)
    if shape.startswith("n"):
        for n, h, w in ((0, 8, 8), (3, 8, 9), (1, 1, 1), (2, 3, 2)):
            assert_same(model, result, feeds_for(model, n=n, h=h, w=w)[0]["x"], tolerance)


@pytest.mark.parametrize("channels", ["3", "c"])
@pytest.mark.parametrize(
    ("more", "factors"),
    [
        ("cubic_coeff_a = -0.5", (2.5, 2.5)),
        ("cubic_coeff_a = -0.5", (2, 4)),
        ("cubic_coeff_a = -0.5", (0.5, 0.5)),
        ("exclude_outside = 1", (2, 2)),
        ('coordinate_transformation_mode = "align_corners"', (2, 2)),
    ],
)
def test_other_cubic_resizes_of_unknown_size_stay(channels: str, more: str, factors: tuple[float, float]) -> None:
    model = build(CUBIC.format(f"1, {channels}, h, 32", more, "s"), s=f32([1, 1, *factors]))
    assert ops(made(model, feeds_for(model, h=32, c=3))) == {"Resize": 1}


VOLUMES = """(float[{0}, 6, 8, 12, 10] x) => (float[{0}, 6, 16, {1}, 25] y) {{
    y = Resize <mode = "{2}", {3}> (x, , {4})
}}"""


@pytest.mark.parametrize("mode", ["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"])
@pytest.mark.parametrize("kind", ["linear", "nearest"])
@pytest.mark.parametrize("by_sizes", [False, True])
@pytest.mark.parametrize("batch", ["1", "n"])
def test_a_resize_of_volumes(mode: str, kind: str, by_sizes: bool, batch: str) -> None:
    if by_sizes:
        batch = "1"  # the size says it
    given = np.array([1, 6, 16, 6, 25]) if by_sizes else f32([1, 1, 2, 0.5, 2.5])
    places = f'coordinate_transformation_mode = "{mode}"'
    model = build(VOLUMES.format(batch, 6, kind, places, ", s" if by_sizes else "s"), s=given)
    result = made(model, feeds_for(model, n=1))
    found = ops(result)
    in_products = kind == "linear" and batch == "1"
    assert (found["MatMul"], found["Resize"]) == ((3, 0) if in_products else (0, 2))
    for n in (1, *((0, 3) if batch == "n" else ())):
        x = feeds_for(model, n=n)[0]["x"]
        if kind == "nearest":
            np.testing.assert_array_equal(run(result, {"x": x})[0], run(model, {"x": x})[0])
        else:
            assert_same(model, result, x, 1e-5)


def test_a_resize_of_volumes_of_unknown_size_stays() -> None:
    text = """(float[1, 6, d, 12, 10] x) => (float[1, 6, a, b, c] y) { y = Resize <mode = "linear"> (x, , s) }"""
    model = build(text, s=f32([1, 1, 2, 2, 2]))
    assert ops(made(model, feeds_for(model, d=8))) == {"Resize": 1}


@pytest.mark.parametrize("batch", ["1", "n"])
@pytest.mark.parametrize("factors", [(0.5, 0.5, 0.5), (2, 0.5, 0.5), (1, 0.5, 2)])
def test_an_interpolated_resize_of_volumes_that_makes_no_more_elements_stays(
    batch: str, factors: tuple[float, ...]
) -> None:
    """Half as large along each axis, the products take 1.4 to 6 times as long."""
    after = [int(size * factor) for size, factor in zip((8, 12, 10), factors, strict=True)]
    sizes, text = ", ".join(map(str, after)), 'y = Resize <mode = "linear"> (x, , s)'
    text = f"(float[{batch}, 6, 8, 12, 10] x) => (float[{batch}, 6, {sizes}] y) {{ {text} }}"
    model = build(text, s=f32([1, 1, *factors]))
    assert ops(made(model, feeds_for(model, n=1))) == {"Resize": 1}
