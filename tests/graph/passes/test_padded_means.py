"""Padding that a mean pool counts, as a Pad of zeros in front of it."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxq.graph.passes.padded_means import padded_means
from onnxq.ort.session import Session
from tests.models import build, feeds_for


def pool(how: str) -> onnx.ModelProto:
    return build(f"(float[1, 3, 12, 12] x) => (float[1, 3, h, w] y) {{ y = AveragePool <{how}> (x) }}", opset=20)


@pytest.mark.parametrize(
    "how",
    [
        "kernel_shape = [2, 2], strides = [2, 2], pads = [1, 1, 1, 1]",
        "kernel_shape = [4, 3], strides = [2, 1], pads = [2, 0, 1, 1]",
    ],
)
def test_it_changes_no_number(how: str) -> None:
    proto = pool(f"{how}, count_include_pad = 1")
    model = ir.from_proto(proto)
    assert len(padded_means(model, lambda node: True)) == 1 and not padded_means(model, lambda node: True)
    assert [n.op_type for n in model.graph] == ["Pad", "AveragePool"]
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    for feed in feeds_for(proto, samples=2):
        want = Session(ir.from_proto(proto), optimize=False).run(feed)["y"]
        np.testing.assert_allclose(Session(model, optimize=False).run(feed)["y"], want, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "how",
    [
        "kernel_shape = [2, 2], pads = [1, 1, 1, 1]",
        "kernel_shape = [2, 2], count_include_pad = 1",
        "kernel_shape = [2, 2], strides = [3, 3], pads = [1, 1, 1, 1], count_include_pad = 1, ceil_mode = 1",
    ],
)
def test_others_are_left(how: str) -> None:
    assert not padded_means(ir.from_proto(pool(how)), lambda node: True)


def test_those_not_chosen_are_left() -> None:
    assert not padded_means(
        ir.from_proto(pool("kernel_shape = [2, 2], pads = [1, 1, 1, 1], count_include_pad = 1")), lambda node: False
    )
