"""Mean pools without rounding up or in steps of their own, and indices that count from the start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxq
from onnxq.graph.note import Note
from onnxq.graph.passes.plain_means import plain_means
from onnxq.graph.passes.positive_indices import positive_indices
from onnxq.graph.shapes import infer_shapes
from onnxq.ort.session import Session
from tests.models import build, feeds_for


def pool(attributes: str, sizes: str = "1, 3, 9, 7") -> onnx.ModelProto:
    how = f"kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1, {attributes}"
    return build(f"(float[{sizes}] x) => (float[1, 3, h, w] y) {{ y = AveragePool <{how}> (x) }}")


def gather(op: str, indices: Any, axis: int, sizes: str = "1, 3, 9, 7") -> onnx.ModelProto:
    return build(f"(float[{sizes}] x) => (float y) {{ y = {op} <axis = {axis}> (x, i) }}", i=np.asarray(indices))


def same_numbers(source: onnx.ModelProto, change: Callable[[ir.Model], list[Note]]) -> ir.Model:
    model = ir.from_proto(source)
    infer_shapes(model)
    assert change(model)
    for feeds in feeds_for(source, samples=2):
        want = Session(ir.from_proto(source), optimize=False).run(feeds)["y"]
        np.testing.assert_allclose(Session(model, optimize=False).run(feeds)["y"], want, rtol=0, atol=1e-6)
    return model


@pytest.mark.parametrize(("pads", "sizes"), [("0, 0, 0, 0", "1, 3, 8, 10"), ("1, 0, 1, 0", "1, 3, 9, 10")])
def test_a_mean_pool_is_padded(pads: str, sizes: str) -> None:
    (node,) = same_numbers(pool(f"pads = [{pads}]", sizes), plain_means).graph
    assert "ceil_mode" not in node.attributes


def test_mean_pools_that_stay() -> None:
    counted, free = pool("count_include_pad = 1", "1, 3, 8, 8"), pool("pads = [0, 0, 0, 0]", "1, 3, H, W")
    mostly_padding = pool("pads = [1, 1, 1, 1]", "1, 3, 8, 8")
    for source in (counted, free, mostly_padding):
        model = ir.from_proto(source)
        infer_shapes(model)
        assert not plain_means(model)
        assert [kept.op for kept in onnxq.plan(source, backend="qnn").kept_float] == ["AveragePool"]


@pytest.mark.parametrize(
    ("how", "sizes", "one"),
    [
        ("kernel_shape = [4, 4], strides = [4, 4]", "8, 11", True),
        ("kernel_shape = [12, 6], strides = [12, 6]", "24, 13", True),
        ("kernel_shape = [4, 4], strides = [4, 4]", "H, W", True),
        ("kernel_shape = [2, 2], strides = [2, 2]", "8, 8", False),
        ("kernel_shape = [3, 6], strides = [3, 6]", "12, 12", False),
        ("kernel_shape = [4, 4], strides = [2, 2]", "8, 8", False),
        ("kernel_shape = [4, 4], strides = [4, 4], pads = [1, 1, 1, 1]", "10, 10", False),
        ("kernel_shape = [8, 8], strides = [8, 8]", "8, 8", False),
    ],
)
def test_mean_pools_of_two_steps_share_a_scale(how: str, sizes: str, one: bool) -> None:
    source = build(f"(float[1, 3, {sizes}] x) => (float[1, 3, h, w] y) {{ y = AveragePool <{how}> (x) }}")
    shapes = {"x": (1, 3, 24, 24)} if sizes == "H, W" else None
    plan = onnxq.plan(source, backend="qnn", shapes=shapes)
    assert len({plan.root(site).name for site in plan.sites}) == (1 if one else 2)


@pytest.mark.parametrize(
    ("op", "indices", "axis"),
    [("Gather", -1, 2), ("Gather", [[0, -1], [-2, 1]], 1), ("GatherElements", -np.ones((1, 3, 9, 2), np.int64), -1)],
)
def test_indices_count_from_the_start(op: str, indices: Any, axis: int) -> None:
    model = same_numbers(gather(op, indices, axis), positive_indices)
    (node,) = model.graph
    assert node.inputs[1] is not None and node.inputs[1].const_value is not None
    assert (node.inputs[1].const_value.numpy() >= 0).all()


def test_indices_into_a_free_axis_stay() -> None:
    source = gather("Gather", -1, 2, "1, 3, H, 7")
    assert not positive_indices(ir.from_proto(source))
    (kept,) = onnxq.plan(source, backend="qnn").kept_float
    assert "count from the end" in kept.reason
