"""Caches of attention that onnxruntime leaves unset, and keys of before that it forgets."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import onnxq
from tests.models import normal
from tests.running import open_session

_SIZES = {"window": [1, 2, 8, 16], "now": [1, 4, 64]}


def _windowed(window: int) -> onnx.ModelProto:
    """Two heads of 16 numbers behind a product, and a cache of eight tokens."""
    caches = [helper.make_tensor_value_info(name, TensorProto.FLOAT, _SIZES["window"]) for name in ("pk", "pv")]
    presents = [helper.make_tensor_value_info(name, TensorProto.FLOAT, _SIZES["window"]) for name in ("ck", "cv")]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, _SIZES["now"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 32])
    inputs = ["q", "k", "v", "pk", "pv", "last", "total"]
    attention = helper.make_node(
        "GroupQueryAttention", inputs, ["y", "ck", "cv"], name="attention", domain="com.microsoft"
    )
    options = {"num_heads": 2, "kv_num_heads": 2, "local_window_size": 8, "sliding_window_cache": window}
    attention.attribute.extend(helper.make_attribute(key, value) for key, value in options.items())
    nodes = [
        *(helper.make_node("MatMul", ["x", f"w{name}"], [name], name=f"product_{name}") for name in "qkv"),
        attention,
    ]
    constants = {f"w{name}": normal(64, 32, seed=seed) for seed, name in enumerate("qkv")}
    constants |= {"last": np.array([3], np.int32), "total": np.array(4, np.int32)}
    held = [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "g", [x, *caches], [y, *presents], held)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize("window", [0, 1])
def test_caches_of_a_window_are_said(window: int) -> None:
    found = [f for f in onnxq.check(_windowed(window)) if "leaves unset" in f.what]
    assert [(f.level, f.hint) for f in found] == [
        ("warning", "Give samples of at least 8 tokens, or look at the others.")
    ] * window
    assert all("ck, cv" in f.what for f in found)


def _with_past(present: bool) -> onnx.ModelProto:
    ends = ["y", "ck", "cv"] if present else ["y"]
    node = helper.make_node(
        "MultiHeadAttention", ["q", "k", "v", "", "", "", "pk", "pv"], ends, "att", domain="com.microsoft", num_heads=2
    )
    fed = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3, 16]) for name in "qkv"]
    past = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 2, 4, 8]) for name in ("pk", "pv")]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3, 16])
    graph = helper.make_graph([node], "g", [*fed, *past], [y])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize("present", [False, True])
def test_an_attention_that_forgets_is_said(present: bool) -> None:
    found = [f.what for f in onnxq.check(_with_past(present)) if "computes wrongly" in f.what]
    assert len(found) == (not present)
    assert all("att" in what for what in found)


@pytest.mark.skipif(not ort.__version__.startswith("1.32"), reason="of other versions it was not seen")
def test_named_outputs_are_the_remedy() -> None:
    """onnxruntime computes it right as soon as the outputs have names, whether or not they are read."""
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal((1, 3, 16)).astype(np.float32) for name in "qkv"}
    past = {name: rng.standard_normal((1, 2, 4, 8)).astype(np.float32) for name in ("pk", "pv")}
    q, k, v = (feeds[name].reshape(1, 3, 2, 8).transpose(0, 2, 1, 3) for name in "qkv")
    k, v = np.concatenate([past["pk"], k], 2), np.concatenate([past["pv"], v], 2)
    scores = np.exp(q @ k.transpose(0, 1, 3, 2) / 8**0.5)
    expected = (scores / scores.sum(-1, keepdims=True) @ v).transpose(0, 2, 1, 3).reshape(1, 3, 16)
    for present in (False, True):
        session = open_session(_with_past(present))
        got = session.run(None, {**feeds, **past})[0]
        assert np.allclose(got, expected, atol=1e-5) == present
