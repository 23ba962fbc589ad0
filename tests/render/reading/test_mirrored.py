"""Stored integers with scales below 0, as NNCF compresses weights symmetrically: taken exactly, on scales above 0."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import DTypeLike, NDArray

import onnxq
from onnxq.qparams import quantize
from tests.contract import infer
from tests.models import build, f32, images, normal

SCALES = f32([0.02, -0.03, -0.05, 0.01, -0.04, 0.02])
FEEDS = images(1, 2, 8)


def compressed(
    codes: NDArray[np.int64], kind: DTypeLike, *, zero: int = 0, scale: NDArray[np.float32] = SCALES
) -> onnx.ModelProto:
    """A product with a weight of stored integers, [8, 6], as it stands in a compressed model."""
    axis = "" if not scale.ndim else "<axis = 1>"
    return build(
        f"""(float[1, 2, 8] x) => (float[1, 2, 6] y) {{
            d = DequantizeLinear {axis} (w, s, z)
            [product] y = MatMul (x, d)
        }}""",
        opset=21,
        ir_version=10,
        w=codes.astype(kind),
        s=scale,
        z=np.full(scale.shape, zero).astype(kind),
    )


def codes(low: int, high: int) -> NDArray[np.int64]:
    """Random integers, both ends among them, the lower one not in channels 2 and 3."""
    made = np.random.default_rng(0).integers(low, high, (8, 6), endpoint=True)
    made[0], made[1] = low, high
    made[:, 2:4] = np.maximum(made[:, 2:4], low + 1)
    return made


@pytest.mark.parametrize(
    ("kind", "low", "high", "zero"),
    [
        (np.int8, -128, 127, 0),
        (np.int8, -128, 127, 7),
        (np.uint8, 0, 255, 128),
        (np.uint8, 0, 255, 3),
        (ml_dtypes.int4, -8, 7, 0),
        (ml_dtypes.uint4, 0, 15, 8),
        (np.int16, -32768, 32767, 0),
    ],
)
def test_the_same_numbers(kind: DTypeLike, low: int, high: int, zero: int) -> None:
    model = compressed(codes(low, high), kind, zero=zero)
    back = onnxq.read(model)
    (site,) = back.plan.sites
    numbers = back.qparams[site.name]
    assert (numbers.scale == np.abs(SCALES)).all()
    want, got = (infer(m, FEEDS, optimize=False)["y"] for m in (model, ir.to_proto(back.qdq())))
    for a, b in zip(want, got, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_channel_stays_symmetric_where_it_can() -> None:
    """Only where the lowest integer is used is there none for its negative."""
    back = onnxq.read(compressed(codes(-128, 127), np.int8))
    (site,) = back.plan.sites
    assert back.qparams[site.name].zero_point.tolist() == [0, -1, 0, 0, -1, 0]
    few = onnxq.read(compressed(np.maximum(codes(-128, 127), -127), np.int8))
    (site,) = few.plan.sites
    assert few.qparams[site.name].spec.symmetric
    assert few.qparams[site.name].spec.narrow_range


@pytest.mark.parametrize(("lowest", "zero"), [(-128, -1), (-127, 0)])
def test_one_scale(lowest: int, zero: int) -> None:
    given = np.maximum(codes(-128, 127), lowest)
    model = compressed(given, np.int8, scale=f32(-0.02))
    back = onnxq.read(model)
    (site,) = back.plan.sites
    numbers = back.qparams[site.name]
    assert (float(numbers.scale), int(numbers.zero_point)) == (float(f32(0.02)), zero)
    np.testing.assert_array_equal(quantize(given * f32(-0.02), numbers), 2 * zero + (zero == -1) - given)


def test_scales_below_0_of_what_is_no_constant_are_refused() -> None:
    model = build(
        """(int8[1, 8] x) => (float[1, 4] y) { d = DequantizeLinear (x, s)  y = MatMul (d, w) }""",
        s=f32(-0.1),
        w=normal(8, 4),
    )
    with pytest.raises(onnxq.OnnxqError, match="not a finite number above 0"):
        onnxq.deploy(model)
