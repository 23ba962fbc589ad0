"""Resize to the nearest element as Gather nodes."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxq
from onnxq.graph.passes.nearest_gathers import nearest_gathers
from onnxq.graph.shapes import infer_shapes
from onnxq.ort.session import Session
from tests.models import build, f32, feeds_for

COORDINATES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


def resize(attributes: str, *scales: float, sizes: str = "1, 3, 6, 5") -> onnx.ModelProto:
    return build(f"(float[{sizes}] x) => (float[1, b, c, d] y) {{ y = Resize {attributes} (x, , s) }}", s=f32(scales))


def gathered(source: onnx.ModelProto) -> ir.Model:
    model = ir.from_proto(source)
    infer_shapes(model)
    nearest_gathers(model, lambda _: True)
    return model


@pytest.mark.parametrize(("coordinates", "rounding"), list(itertools.product(COORDINATES, ROUNDINGS)))
def test_the_same_elements(coordinates: str, rounding: str) -> None:
    how = f'<coordinate_transformation_mode = "{coordinates}", nearest_mode = "{rounding}">'
    for scales in ((1, 1, 2, 2), (1, 1, 0.5, 1.6), (1, 2, 1, 3)):
        source = resize(how, *scales)
        model = gathered(source)
        assert {node.op_type for node in model.graph} == {"Gather"}
        onnx.checker.check_model(ir.to_proto(model), full_check=True)
        (feeds,) = feeds_for(source, samples=1)
        want = Session(ir.from_proto(source), optimize=False).run(feeds)["y"]
        np.testing.assert_array_equal(Session(model, optimize=False).run(feeds)["y"], want)


def test_elements_may_move_where_sizes_do_not() -> None:
    source = resize('<coordinate_transformation_mode = "half_pixel", nearest_mode = "floor">', 1, 1, 1.15, 2)
    model = gathered(source)
    assert [node.op_type for node in model.graph] == ["Gather", "Gather"]
    (feeds,) = feeds_for(source, samples=1)
    want = Session(ir.from_proto(source), optimize=False).run(feeds)["y"]
    assert want.shape == (1, 3, 6, 10)
    np.testing.assert_array_equal(Session(model, optimize=False).run(feeds)["y"], want)


def test_what_is_left() -> None:
    for source in (
        resize("", 1, 1, 2, 2, sizes="1, 3, N, 5"),
        resize('<mode = "linear">', 1, 1, 2, 2),
        build("(float[1, 3, 6, 5] x, float[4] s) => (float[a, b, c, d] y) { y = Resize (x, , s) }"),
    ):
        assert [node.op_type for node in gathered(source).graph] == ["Resize"]


def test_constants_may_have_any_name() -> None:
    source = build(
        "(float[1, 3, 6, 5] x) => (float[1, b, c, d] y) { y = Resize (x, , positions) }", positions=f32([1, 1, 0.5, 2])
    )
    assert {node.op_type for node in gathered(source).graph} == {"Gather"}


def test_for_the_htp() -> None:
    floor = '<coordinate_transformation_mode = "half_pixel", nearest_mode = "floor">'
    assert set(onnxq.plan(resize(floor, 1, 1, 2, 2), backend="qnn").quantized.values()) == {"Gather"}
    assert set(onnxq.plan(resize("", 1, 1, 0.5, 2), backend="qnn").quantized.values()) == {"Gather"}
    assert set(onnxq.plan(resize("", 1, 1, 2, 3), backend="qnn").quantized.values()) == {"Resize"}
    (kept,) = onnxq.plan(resize(floor, 1, 1, 2, 2, sizes="1, 3, N, 5"), backend="qnn").kept_float
    assert "takes other elements" in kept.reason
