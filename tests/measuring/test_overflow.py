"""Results that integer kernels of some processors cut off are told of, where this is such a processor."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxq
from onnxq.ort.session import PRECISE
from tests.running import open_session

_WIDE = 64


def _heavy(weight: int) -> onnx.ModelProto:
    """A MatMul in QDQ, two neighbouring products of which come near 2 x 255 x weight."""
    signs = np.where(np.arange(_WIDE) % 4 < 2, 1, -1)[:, None] * np.ones((1, 8))
    constants = {
        "w": (signs * weight).astype(np.int8),
        "ws": np.float32(0.01),
        "wz": np.int8(0),
        "s": np.float32(1 / 255),
        "z": np.uint8(0),
        "ys": np.float32(0.4),
        "yz": np.uint8(128),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "s", "z"], ["xd"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wd"]),
        helper.make_node("MatMul", ["xd", "wd"], ["m"], "product"),
        helper.make_node("QuantizeLinear", ["m", "ys", "yz"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "ys", "yz"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [16, w]) for n, w in (("x", _WIDE), ("y", 8))]
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "heavy", ends[:1], ends[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _run(model: onnx.ModelProto, feeds: dict[str, Any], *, optimized: bool, exact: bool = False) -> np.ndarray:
    return np.asarray(open_session(model, optimize=optimized, precise=exact).run(None, feeds)[0])


def _cuts_off(model: onnx.ModelProto) -> bool:
    """What onnxruntime does here, with numbers in the ranges of the model's quantizers."""
    feeds = {"x": np.random.default_rng(0).random((16, _WIDE), np.float32)}
    plain = _run(model, feeds, optimized=False)
    assert np.abs(_run(model, feeds, optimized=True, exact=True) - plain).max() <= 0.41  # one step, at ties
    return bool(np.abs(_run(model, feeds, optimized=True) - plain).max() > 0.81)


@pytest.mark.parametrize("weight", [127, 63])
def test_a_deployed_model_whose_sums_are_cut_off_here_is_told_of(weight: int) -> None:
    model = _heavy(weight)

    checked = onnxq.deploy(model, options=onnxq.Options(reduce_range=False)).verification

    assert checked is not None
    told = [text for text in checked.warnings if "cut off sums of products" in text]
    assert bool(told) == _cuts_off(model)
    exact = onnxq.deploy(model).verification
    assert exact is not None and not any("cut off sums" in text for text in exact.warnings)
    assert all("--reduce-range" in text and PRECISE in text for text in told)
    if weight == 63:  # 255 x 63, twice, fits 16 bits on any processor
        assert not told


@pytest.mark.parametrize("reduce_range", [False, True, None])
def test_so_is_a_model_quantized_with_data(reduce_range: bool | None) -> None:
    signs = np.where(np.arange(_WIDE) % 4 < 2, 1, -1)[:, None] * np.ones((1, 8))
    node = helper.make_node("MatMul", ["x", "w"], ["y"], "product")
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [16, w]) for n, w in (("x", _WIDE), ("y", 8))]
    weight = numpy_helper.from_array(signs.astype(np.float32), "w")
    graph = helper.make_graph([node], "heavy", ends[:1], ends[1:], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    data = [{"x": np.random.default_rng(n).random((16, _WIDE), np.float32)} for n in range(8)]

    made = onnxq.quantize(model, data, options=onnxq.Options(reduce_range=reduce_range, placement="all"))

    assert made.verification is not None and made.plan.quantized
    told = any("cut off sums of products" in text for text in made.verification.warnings)
    assert told == (reduce_range is False and _cuts_off(_heavy(127)))
