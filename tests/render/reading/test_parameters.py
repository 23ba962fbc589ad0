"""Scales, zero points and axes as a file has them: each counts, and none is taken for another."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import onnxq
from onnxq.spec import PerChannel
from tests.models import build, f32, images, normal
from tests.render.reading.test_read import equal_outputs


def test_a_dequantizer_with_another_zero_point_makes_no_pair() -> None:
    model = build(
        """(float[2, 8] x) => (float[2, 8] y) {
            q = QuantizeLinear (x, s, z)  d = DequantizeLinear (q, s, z2)  y = Neg (d)
        }""",
        s=f32(0.05),
        z=np.uint8(120),
        z2=np.uint8(100),
    )
    back = onnxq.read(model)
    assert not back.plan.sites and any("is not followed by its DequantizeLinear" in note for note in back.notes)
    equal_outputs(model.SerializeToString(), back.qdq(), images(2, 8)[0])


def test_what_takes_the_size_of_integers_reads_what_is_made_of_them() -> None:
    model = build(
        """(float[N, 8] x) => (float[N, 8] y) {
            a = Abs (x)  q = QuantizeLinear (a, s, z)  d = DequantizeLinear (q, s, z)
            b = Neg (d)  n = Shape (q)  y = Reshape (b, n)
        }""",
        s=f32(0.05),
        z=np.uint8(120),
    )
    back = onnxq.read(model)
    (site,) = back.plan.sites
    assert site.tensor == "a" and site.produced and len(site.readers) == 2
    equal_outputs(model.SerializeToString(), back.qdq(), images(2, 8)[0])


def test_what_moves_between_two_zero_points_is_not_tied() -> None:
    """The scales are equal; tied, the second quantizer would be written with the first one's zero point."""
    model = build(
        """(float[1, 2, 4, 4] x) => (float[1, 2, 2, 2] y) {
            q = QuantizeLinear (x, s, z)  d = DequantizeLinear (q, s, z)
            p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (d)
            r = QuantizeLinear (p, s, z2)  y = DequantizeLinear (r, s, z2)
        }""",
        s=f32(0.02),
        z=np.uint8(128),
        z2=np.uint8(100),
    )
    back = onnxq.read(model)
    assert all(site.tied_to is None for site in back.plan.sites) and len(back.plan.sites) == 2
    equal_outputs(model.SerializeToString(), back.qdq(), images(1, 2, 4, 4)[0])


def test_what_another_domain_names_like_data_movement_is_not_tied() -> None:
    """It may compute anything; what is known of it are the scales on both its sides."""
    model = build(
        """(float[1, 2, 4, 4] x) => (float[1, 2, 4, 4] y) {
            q = QuantizeLinear (x, s, z)  d = DequantizeLinear (q, s, z)
            p = custom.Transpose (d)
            r = QuantizeLinear (p, s, z)  y = DequantizeLinear (r, s, z)
        }""",
        s=f32(0.02),
        z=np.uint8(128),
    )
    model.opset_import.append(onnx.helper.make_opsetid("custom", 1))
    back = onnxq.read(model)
    assert [site.tied_to for site in back.plan.sites] == [None, None]


@pytest.mark.parametrize(
    ("start", "weight"),
    [("q = QuantizeLinear <axis = -1> (w, s, z)", {"w": normal(8, 4)}), ("", {"q": np.full((8, 4), 7, np.int8)})],
    ids=["pair", "stored"],
)
def test_channels_counted_from_the_end_are_channels(start: str, weight: dict[str, Any]) -> None:
    model = build(
        f"""(float[2, 8] x) => (float[2, 4] y) {{
            {start} v = DequantizeLinear <axis = -1> (q, s, z)  y = MatMul (x, v)
        }}""",
        s=f32([0.01, 0.02, 0.03, 0.04]),
        z=np.zeros(4, np.int8),
        **weight,
    )
    back = onnxq.read(model)
    (site,) = back.plan.sites
    assert (site.role, site.spec.granularity) == ("weight", PerChannel(1))
    equal_outputs(model.SerializeToString(), back.qdq(), images(2, 8)[0])


def test_integers_unpacked_along_two_axes_are_two_constants() -> None:
    model = build(
        """(float[2, 8] x) => (float[2, 8] y) {
            w = DequantizeLinear <axis = 0> (k, s, z)  a = MatMul (x, w)
            v = DequantizeLinear <axis = 1> (k, s, z)  y = MatMul (a, v)
        }""",
        k=np.arange(-32, 32, dtype=np.int8).reshape(8, 8),
        z=np.zeros(8, np.int8),
        s=f32(np.linspace(0.01, 0.08, 8)),
    )
    back = onnxq.read(model)
    assert [site.spec.granularity for site in back.plan.sites] == [PerChannel(0), PerChannel(1)]
    equal_outputs(model.SerializeToString(), back.model, images(2, 8)[0])
    equal_outputs(model.SerializeToString(), back.qdq(), images(2, 8)[0])
