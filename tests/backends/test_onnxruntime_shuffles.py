"""A DepthToSpace behind an integer convolution is put side by side with channels last."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxq
from onnxq import Options
from onnxq.graph.files.save import to_proto
from tests.backends.test_onnxruntime import optimized
from tests.backends.test_onnxruntime_groups import unchanged
from tests.graph.helpers import run
from tests.models import build, f32, images, normal

ALL = Options(placement="all", effort="fast")


def net(
    mode: str = "CRD",
    behind: str = "Relu (b)",
    sizes: str = "1, 16, 12, 14",
    more: str = "",
    outputs: str = "float[B, 8, H, W] y",
) -> onnx.ModelProto:
    return build(
        f"""(float[{sizes}] x) => ({outputs}) {{
            [made] b = Conv <pads = [1, 1, 1, 1]> (x, w, c)
            r = {behind}
            [shuffled] s = DepthToSpace <blocksize = 2, mode = "{mode}"> (r)
            y = Conv (s, v)
            {more}
        }}""",
        w=normal(24, 16, 3, 3),
        c=normal(24, seed=1),
        v=normal(8, 6, 1, 1, seed=2),
        low=f32(-1),
        high=f32(2),
    )


def kinds(model: onnx.ModelProto) -> set[str]:
    return {node.op_type for node in model.graph.node}


@pytest.mark.parametrize("mode", ["CRD", "DCR"])
@pytest.mark.parametrize("behind", ["Relu (b)", "Clip (b, low, high)", "Identity (b)"])
@pytest.mark.parametrize("per_channel", [True, False])
def test_the_numbers_stay(mode: str, behind: str, per_channel: bool, tmp_path: Path) -> None:
    data = images(1, 16, 12, 14)
    q = onnxq.quantize(net(mode, behind), data, options=replace(ALL, per_channel=per_channel))
    made, before = unchanged(q, data[:2])
    assert "DepthToSpace" in kinds(before) and "DepthToSpace" not in kinds(made)
    onnx.checker.check_model(made, full_check=True)
    onnx.save(made, tmp_path / "q.onnx")
    assert optimized(tmp_path / "q.onnx").count("QLinearConv") == 2
    for feeds in data[:2]:
        np.testing.assert_allclose(run(made, feeds)[0], run(before, feeds)[0], atol=0.1)


@pytest.mark.parametrize("sizes", ["N, 16, 12, W0", "N, 16, H0, W0"])
def test_free_sizes(sizes: str) -> None:
    q = onnxq.quantize(net(sizes=sizes), images(1, 16, 12, 14), options=ALL)
    made, _ = unchanged(q, [*images(1, 16, 12, 14, samples=1), *images(2, 16, 12, 20, samples=1)])
    assert "DepthToSpace" not in kinds(made)


@pytest.mark.parametrize(
    "change",
    [
        {"behind": "LeakyRelu (b)"},
        {"more": "z = Neg (r)", "outputs": "float[B, 8, H, W] y, float[B, 24, H, W] z"},
        {"outputs": "float[B, 8, H, W] y, float[B, 24, H, W] b"},
    ],
    ids=str,
)
def test_elsewhere_it_stays(change: dict[str, Any]) -> None:
    """Where others read the channels, or a kernel stands between that is one of its own."""
    q = onnxq.quantize(net(**change), images(1, 16, 12, 14), options=ALL)
    assert "DepthToSpace" in kinds(to_proto(q.qdq()))


def test_models_are_compared_behind_it(tmp_path: Path) -> None:
    """The tensor in front has its channels in another order, and another name."""
    path = tmp_path / "q.onnx"
    data = images(1, 16, 12, 14)
    onnxq.quantize(net(), data, options=ALL, output=path)
    found: Any = onnxq.compare(net(), path, data)
    levels = {tensor.tensor: tensor.errors.sqnr for tensor in found.tensors}
    assert levels["s"] > 30 and not {"b", "r"} & levels.keys()


@pytest.mark.parametrize("mode", ["CRD", "DCR"])
@pytest.mark.parametrize("group", [4, 16])
def test_behind_groups_of_channels(mode: str, group: int) -> None:
    """Their channels cannot be made in another order."""
    proto = build(
        f"""(float[1, 16, 12, 14] x) => (float[1, 8, 24, 28] y) {{
            a = Conv (x, u)
            b = Conv <group = {group}> (a, w)
            s = DepthToSpace <blocksize = 2, mode = "{mode}"> (b)
            y = Conv (s, v)
        }}""",
        u=normal(16, 16, 1, 1),
        w=normal(16, 16 // group, 1, 1, seed=1),
        v=normal(8, 4, 1, 1, seed=2),
    )
    data = images(1, 16, 12, 14)
    q = onnxq.quantize(proto, data, options=ALL)
    made, _ = unchanged(q, data[:2])
    assert ("DepthToSpace" in kinds(made)) is (mode == "CRD")


@pytest.mark.parametrize(("scale", "zero"), [(0.07, np.uint8(128)), (0.05, np.int8(0))])
def test_where_the_grids_differ_it_stays(scale: float, zero: Any) -> None:
    pair = "{0}q = QuantizeLinear ({0}, {1}, {2}) \n {0}d = DequantizeLinear ({0}q, {1}, {2})"
    model = build(
        f"""(float[1, 16, 12, 14] x) => (float[1, 6, 24, 28] y) {{
            {pair.format("x", "s", "z")}
            u = DequantizeLinear (w, t, k)
            b = Conv (xd, u)
            {pair.format("b", "s", "o")}
            e = DepthToSpace <blocksize = 2> (bd)
            {pair.format("e", "t", "n")}
            y = Neg (ed)
        }}""",
        w=np.random.default_rng(0).integers(-99, 99, (24, 16, 1, 1)).astype(np.int8),
        s=f32(0.05),
        t=f32(scale),
        z=np.uint8(128),
        o=zero,
        n=np.zeros((), np.uint8) if zero.dtype == np.int8 else zero,
        k=np.int8(0),
    )
    unchanged(onnxq.deploy(model, backend="onnxruntime"), images(1, 16, 12, 14, samples=1))
