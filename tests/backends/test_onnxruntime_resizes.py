"""A quantized Resize that repeats elements does so with channels last."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxq
from onnxq import Options
from onnxq.backends.onnxruntime.resizes import repeats
from onnxq.graph.files.save import to_proto
from onnxq.graph.traverse import all_nodes
from onnxq.prepare import Prepared
from onnxq.render.qdq import render
from tests.backends.test_onnxruntime import optimized
from tests.backends.test_onnxruntime_groups import in_integers, unchanged
from tests.graph.helpers import run
from tests.models import build, images, normal

ALL = Options(placement="all", effort="fast")
TORCH = 'mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"'


def net(
    times: tuple[float, float] = (2, 2),
    attributes: str = TORCH,
    sizes: str = "1, 16, 12, 14",
    more: str = "",
    outputs: str = "float[B, 8, H, W] y",
) -> onnx.ModelProto:
    return build(
        f"""(float[{sizes}] x) => ({outputs}) {{
            b = Conv <pads = [1, 1, 1, 1]> (x, w)
            r = Relu (b)
            [larger] s = Resize <{attributes}> (r, , times)
            y = Conv <pads = [1, 1, 1, 1]> (s, v)
            {more}
        }}""",
        w=normal(24, 16, 3, 3),
        v=normal(8, 24, 3, 3, seed=2),
        times=np.array([1, 1, *times], np.float32),
    )


def kinds(model: onnx.ModelProto) -> set[str]:
    return {node.op_type for node in model.graph.node}


@pytest.mark.parametrize("times", [(2, 2), (1, 3), (4, 2), (3, 1)])
@pytest.mark.parametrize(
    "attributes", [TORCH, 'mode = "nearest"', 'coordinate_transformation_mode = "pytorch_half_pixel"']
)
def test_the_numbers_stay(times: tuple[int, int], attributes: str, tmp_path: Path) -> None:
    data = images(1, 16, 12, 14)
    q = onnxq.quantize(net(times, attributes), data, options=ALL)
    made, before = unchanged(q, data[:2])
    assert "Resize" in kinds(before) and "Resize" not in kinds(made)
    onnx.checker.check_model(made, full_check=True)
    onnx.save(made, tmp_path / "q.onnx")
    found = optimized(tmp_path / "q.onnx")
    assert found.count("QLinearConv") == 2
    assert found.count("QuantizeLinear") == found.count("DequantizeLinear") == 1, "integers on the way"
    for feeds in data[:2]:
        np.testing.assert_allclose(run(made, feeds)[0], run(before, feeds)[0], atol=1e-5)


@pytest.mark.parametrize(
    ("times", "attributes"),
    [
        ((1.5, 2), TORCH),
        ((3, 3), 'coordinate_transformation_mode = "asymmetric"'),
        ((2, 2), 'coordinate_transformation_mode = "align_corners"'),
        ((2, 2), 'mode = "linear"'),
        ((2, 2), 'coordinate_transformation_mode = "asymmetric", nearest_mode = "ceil"'),
    ],
)
def test_others_do_something_else(times: tuple[float, float], attributes: str) -> None:
    model = Prepared(net(times, attributes), Options()).model
    (node,) = [node for node in all_nodes(model) if node.name == "larger"]
    assert isinstance(node, ir.Node) and repeats(node) is None


@pytest.mark.parametrize("sizes", ["N, 16, 12, W0", "N, 16, H0, W0"])
def test_free_sizes(sizes: str) -> None:
    q = onnxq.quantize(net(sizes=sizes), images(1, 16, 12, 14), options=ALL)
    made, _ = unchanged(q, [*images(1, 16, 12, 14, samples=1), *images(2, 16, 12, 20, samples=1)])
    assert "Resize" not in kinds(made)
    empty = {"x": np.zeros((0, 16, 12, 14), np.float32)}
    assert run(made, empty)[0].shape == in_integers(made, empty).shape == (0, 8, 24, 28)


def test_what_others_read_and_the_model_gives_stays() -> None:
    proto = net(
        more="z = Neg (s) \n u = Neg (r)", outputs="float[B, 8, H, W] y, float[B, 24, H, W] z, float[B, 24, M, N] u"
    )
    data = images(1, 16, 12, 14)
    q = onnxq.quantize(proto, data, options=ALL)
    made, before = to_proto(q.qdq()), to_proto(render(q))
    for got, expected in zip(run(made, data[0]), run(before, data[0]), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-5)


def test_models_are_compared_behind_it(tmp_path: Path) -> None:
    path = tmp_path / "q.onnx"
    data = images(1, 16, 12, 14)
    onnxq.quantize(net(), data, options=ALL, output=path)
    found: Any = onnxq.compare(net(), path, data)
    levels = {tensor.tensor: tensor.errors.sqnr for tensor in found.tensors}
    assert levels["s"] > 30 and levels["r"] > 30
