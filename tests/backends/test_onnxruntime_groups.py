"""Groups of channels of integer convolutions are put together where onnxruntime is faster then, without a change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

import onnxq
from onnxq import Options
from onnxq.backends.onnxruntime import convolutions
from onnxq.backends.onnxruntime.convolutions import conv_cost, groups_together
from onnxq.backends.onnxruntime.processors import NO_VNNI, VNNI, Products
from onnxq.calibration.reduced import overflows
from onnxq.graph.files.save import to_proto
from onnxq.graph.traverse import all_nodes
from onnxq.ort.session import Session
from onnxq.quantized import Quantized
from onnxq.render.qdq import render
from tests.backends.test_onnxruntime import optimized
from tests.models import build, images, normal

ALL = Options(placement="all", effort="fast")


def net(channels: int, group: int, outputs: int | None = None, size: int = 28, behind: str = "Relu") -> onnx.ModelProto:
    """A grouped convolution between two others."""
    outputs = outputs or channels
    return build(
        f"""(float[1, 16, {size}, {size}] x) => (float[1, 16, {size}, {size}] y) {{
            a = Conv (x, w0)
            [grouped] b = Conv <pads = [1, 1, 1, 1], group = {group}> (a, w, bias)
            c = {behind} (b)
            y = Conv (c, w1)
        }}""",
        w0=normal(channels, 16, 1, 1),
        w=normal(outputs, channels // group, 3, 3, seed=1),
        bias=normal(outputs, seed=2),
        w1=normal(16, outputs, 1, 1, seed=3),
    )


def grouped(model: onnx.ModelProto) -> tuple[int, onnx.TensorProto]:
    """Groups of that convolution, and its weights as they are stored."""
    (node,) = [node for node in model.graph.node if node.name == "grouped"]
    (unpack,) = [n for n in model.graph.node if node.input[1] in n.output]
    (weight,) = [tensor for tensor in model.graph.initializer if tensor.name == unpack.input[0]]
    return next(int(a.i) for a in node.attribute if a.name == "group"), weight


def in_integers(model: onnx.ModelProto, feeds: dict[str, Any]) -> Any:
    """By onnxruntime's integer kernels, whose sums are exact."""
    return Session(model.SerializeToString()).run(feeds)["y"]


def unchanged(q: Quantized, data: Sequence[dict[str, Any]]) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """The result and what it was before the last rewritings, whose numbers are the same."""
    made, before = to_proto(q.qdq()), to_proto(render(q))
    for feeds in data:
        np.testing.assert_array_equal(in_integers(made, feeds), in_integers(before, feeds))
    return made, before


@pytest.mark.parametrize(("channels", "group", "outputs"), [(48, 6, 48), (104, 13, 104), (128, 32, 128), (24, 24, 48)])
def test_the_numbers_are_those_of_the_groups_apart(channels: int, group: int, outputs: int, tmp_path: Path) -> None:
    data = images(1, 16, 28, 28)
    path = tmp_path / "q.onnx"
    q = onnxq.quantize(net(channels, group, outputs), data, options=ALL, output=path)
    together, weight = grouped(onnx.load(path))
    assert together < group and weight.dims[1] == channels // together
    assert optimized(path).count("QLinearConv") == 3
    assert grouped(unchanged(q, data)[1])[0] == group


def test_groups_that_are_fast_stay(tmp_path: Path) -> None:
    path = tmp_path / "q.onnx"
    onnxq.quantize(net(128, 2, size=14), images(1, 16, 14, 14), options=ALL, output=path)
    assert grouped(onnx.load(path))[0] == 2


@pytest.mark.parametrize("behind", ["Exp", "Relu"])
def test_only_of_what_becomes_an_integer_kernel(behind: str, tmp_path: Path) -> None:
    """Behind Exp a float kernel multiplies with every zero."""
    path = tmp_path / "q.onnx"
    options = replace(ALL, exclude=() if behind == "Relu" else ("grouped",))
    onnxq.quantize(net(48, 6, behind=behind), images(1, 16, 28, 28), options=options, output=path)
    (node,) = [node for node in onnx.load(path).graph.node if node.name == "grouped"]
    groups = next(a.i for a in node.attribute if a.name == "group")
    assert (groups < 6) is (behind == "Relu")


def test_weights_that_were_given_keep_their_zero_points(tmp_path: Path) -> None:
    """As other tools store them: uint8, each channel with a zero point (onnxruntime 1.23 takes equal ones only)."""
    rng = np.random.default_rng(0)
    integers, zero = rng.integers(0, 255, (48, 8, 3, 3)), np.full(48, 117)
    model = build(
        """(float[1, 48, 28, 28] x) => (float[1, 48, 28, 28] y) {
            q = QuantizeLinear (x, s, z)
            d = DequantizeLinear (q, s, z)
            u = DequantizeLinear <axis = 0> (w, ws, wz)
            [grouped] c = Conv <pads = [1, 1, 1, 1], group = 6> (d, u)
            e = QuantizeLinear (c, s, z)
            y = DequantizeLinear (e, s, z)
        }""",
        s=np.float32(0.05),
        z=np.uint8(128),
        w=integers.astype(np.uint8),
        ws=np.full(48, 0.002, np.float32),
        wz=zero.astype(np.uint8),
    )
    q = onnxq.deploy(model, backend="onnxruntime")
    joined = to_proto(q.qdq())
    group, weight = grouped(joined)
    assert group < 6 and (numpy_helper.to_array(weight) == 0).mean() < 0.1
    for feeds in images(1, 48, 28, 28, samples=2):
        np.testing.assert_array_equal(in_integers(joined, feeds), in_integers(model, feeds))


@pytest.mark.parametrize("products", [VNNI, NO_VNNI])
@pytest.mark.parametrize(("channels", "group"), [(48, 6), (128, 32), (240, 10), (672, 12), (96, 2)])
def test_together_they_never_cost_more(
    channels: int, group: int, products: Products, monkeypatch: pytest.MonkeyPatch
) -> None:
    (node,) = [node for node in all_nodes(ir.from_proto(net(channels, group))) if node.name == "grouped"]
    elements = channels * 28 * 28
    count, together = groups_together(node, elements, products), conv_cost(node, elements, products)[1]
    monkeypatch.setattr(convolutions, "_together", lambda *_: 1)
    apart = conv_cost(node, elements, products)[1]
    assert group % count == 0 and (together < apart if count > 1 else together == apart)


@pytest.mark.parametrize(("channels", "group"), [(48, 6), (128, 32), (36, 6), (24, 24)])
def test_no_two_products_overflow_that_did_not_before(channels: int, group: int) -> None:
    """Without VNNI, neighbours are added in 16 bits: a channel's range is reduced for those of its group alone."""
    options = replace(ALL, reduce_range=True)
    q = onnxq.quantize(net(channels, group, 2 * channels), images(1, 16, 28, 28), options=options)
    joined = to_proto(q.qdq())
    count, weight = grouped(joined)
    assert count < group
    (reader,) = [node for node in all_nodes(ir.from_proto(joined)) if node.name == "grouped"]
    assert not overflows(reader, numpy_helper.to_array(weight).astype(np.float32), np.zeros(1, np.int64))


def test_groups_of_an_odd_number_of_channels_stay_apart() -> None:
    """Their neighbours would be others."""
    model = ir.from_proto(net(30, 6))
    (node,) = [node for node in all_nodes(model) if node.name == "grouped"]
    assert groups_together(node, 30 * 28 * 28) == 1


def test_weights_of_4_bits_are_put_together_too(tmp_path: Path) -> None:
    path = tmp_path / "q.onnx"
    onnxq.quantize(net(48, 6), images(1, 16, 28, 28), options=replace(ALL, weight_bits=4), output=path)
    assert {
        a.i for n in onnx.load(path).graph.node for a in n.attribute if a.name == "group" and n.name == "grouped"
    } == {1}
    assert optimized(path).count("QLinearConv") == 3


@pytest.mark.parametrize("options", [{"symmetric": True}, {"act_bits": 16}])
def test_groups_stay_where_there_is_no_integer_kernel(options: dict[str, Any]) -> None:
    q = onnxq.quantize(net(48, 6), images(1, 16, 28, 28), options=replace(ALL, **options))
    assert {a.i for n in to_proto(q.qdq()).graph.node for a in n.attribute if a.name == "group"} - {1} == {6}
