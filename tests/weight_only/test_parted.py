"""Attention of onnxruntime's own: its weight is multiplied with as stored, the rest is MultiHeadAttention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxq.measuring.metrics import sqnr
from onnxq.weight_only import quantize_weights
from tests.installed import needs
from tests.models import constants_of, normal
from tests.weight_only.layers import LOSS, run, save

pytestmark = needs("onnxruntime", "1.24")

BATCH, ROWS, WIDTH, HEADS, BEFORE = 2, 5, 64, 4, 3


def attention(past: bool = False, present: bool = False, values: int = WIDTH, bias: bool = True, **given: Any) -> Any:
    """A model of one Attention, and data for it; ``given``: mask, added, and attributes."""
    mask, added = given.pop("mask", None), given.pop("added", False)
    keys = ROWS + BEFORE * past
    weights = {"w": normal(WIDTH, 2 * WIDTH + values, scale=0.2)}
    if bias:
        weights["b"] = normal(2 * WIDTH + values, seed=1)
    feeds: dict[str, np.ndarray] = {"x": normal(BATCH, ROWS, WIDTH, seed=2, scale=1.0)}
    if mask is not None:
        feeds["mask"] = np.asarray(mask, np.int32)
    if past:
        feeds["past"] = normal(2, BATCH, HEADS, BEFORE, WIDTH // HEADS, seed=3, scale=1.0)
    if added:
        feeds["added"] = normal(1, HEADS, ROWS, keys, seed=4, scale=1.0)
    operands = [
        "x",
        "w",
        *(name if name in feeds or name in weights else "" for name in ("b", "mask", "past", "added")),
    ]
    sizes: dict[str, Any] = {} if values == WIDTH else {"qkv_hidden_sizes": [WIDTH, WIDTH, values]}
    outputs = ["y", "kept"] if present else ["y"]
    node = helper.make_node(
        "Attention", operands, outputs, "attend", domain="com.microsoft", num_heads=HEADS, **sizes, **given
    )
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for k, v in feeds.items()],
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(v, k) for k, v in weights.items()],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8), feeds


def unpacked(proto: onnx.ModelProto) -> np.ndarray:
    """The numbers that the weight of the product has."""
    held = constants_of(proto)
    (node,) = (n for n in proto.graph.node if n.op_type == "MatMulNBits")
    codes, scale = held[node.input[1]].astype(np.int32), held[node.input[2]]
    both = np.stack([codes & 15, codes >> 4], -1).reshape(*codes.shape[:2], -1) - 8
    blocks = both * scale.reshape(*codes.shape[:2], 1)
    return np.asarray(blocks.reshape(codes.shape[0], -1).T, np.float32)


LENGTHS = [5, 3]
EACH = np.arange(ROWS) < np.array(LENGTHS)[:, None]
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "no bias": {"bias": False},
    "lengths": {"mask": LENGTHS},
    "a mask of keys": {"mask": EACH},
    "a mask of rows and keys": {"mask": np.tril(np.ones((BATCH, ROWS, ROWS)))},
    "causal": {"unidirectional": 1, "mask": EACH, "mask_filter_value": -50.0},
    "added to scores, of a scale": {"added": True, "scale": 0.1},
    "other values": {"values": WIDTH // 2},
    "kept": {"present": True},
    "past": {"past": True, "present": True, "unidirectional": 1},
}


@pytest.mark.parametrize(
    "case",
    # 1.24 to 1.28 end the process in their own Attention where it has no bias
    [
        pytest.param(case, id=name, marks=[needs("onnxruntime", "1.32")] * (name == "no bias"))
        for name, case in CASES.items()
    ],
)
def test_the_kernel_of_the_rest_is_that_of_attention(case: dict[str, Any], tmp_path: Path) -> None:
    proto, feeds = attention(**case)
    source, output = save(proto, tmp_path / "m.onnx"), tmp_path / "q.onnx"
    result = quantize_weights(source, output, format="matmulnbits", accuracy_level=0)
    assert dict(result.quantized) == {"attend": "Attention"}
    assert any("1 Attention became MatMulNBits and MultiHeadAttention" in note for note in result.notes)
    made = onnx.load(output)
    assert {n.op_type for n in made.graph.node} >= {"MatMulNBits", "MultiHeadAttention"}
    weight = unpacked(made)
    rounded = onnx.ModelProto()
    rounded.CopyFrom(proto)
    rounded.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "w"))
    want, got = run(save(rounded, tmp_path / "r.onnx"), feeds), run(output, feeds)
    assert list(got) == list(want)
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, atol=1e-5)
    assert sqnr(run(source, feeds)["y"], got["y"]) > LOSS[4]


@pytest.mark.parametrize("case", [{"mask": [5, 4, 0, 1]}, {"do_rotary": 1}], ids=["ends and starts", "rotary"])
def test_what_the_rest_has_not_is_unpacked_at_load(case: dict[str, Any], tmp_path: Path) -> None:
    proto, _ = attention(**case)
    result = quantize_weights(save(proto, tmp_path / "m.onnx"), tmp_path / "q.onnx", format="matmulnbits")
    assert dict(result.quantized) == {"attend": "Attention"}
    assert any("unpacked at load takes 8 bits" in note for note in result.notes)
    assert "Attention" in {n.op_type for n in onnx.load(tmp_path / "q.onnx").graph.node}


@pytest.mark.parametrize("external", [False, True])
def test_learned_from_data_and_under_a_budget(external: bool, tmp_path: Path) -> None:
    proto, feeds = attention(mask=EACH)
    source = save(proto, tmp_path / "m.onnx", external=external)
    data = [{**feeds, "x": normal(BATCH, ROWS, WIDTH, seed=n, scale=1.0)} for n in range(4)]
    for name, asked in (
        ("g", {"method": "gptq"}),
        ("b", {"avg_bits": 8.0}),
        ("o", {"override": {"attend": "weight_bits=8"}}),
    ):
        output = tmp_path / f"{name}.onnx"
        result = quantize_weights(source, output, format="matmulnbits", data=data, **asked)
        assert dict(result.quantized) == {"attend": "Attention"}
        (product,) = (n for n in onnx.load(output).graph.node if n.op_type == "MatMulNBits")
        assert next(a.i for a in product.attribute if a.name == "bits") == (4 if name == "g" else 8)
        worst = result.verification.worst
        assert worst is not None and worst[1].sqnr > LOSS[4]
