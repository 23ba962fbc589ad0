"""4-bit floating-point numbers against ml_dtypes and onnx's reference, bit for bit."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from onnxq.grids import float4
from onnxq.spec import PerBlock, QuantSpec, Scheme

CODES = np.arange(16, dtype=np.uint8)
NUMBERS = CODES.view(ml_dtypes.float4_e2m1fn).astype(np.float32)


def values() -> NDArray[np.float32]:
    """All numbers, the middles between them and their neighbours, random ones, and what lies beyond."""
    numbers = np.unique(NUMBERS)
    middles = (numbers[1:] + numbers[:-1]) / 2
    near = [np.nextafter(middles, np.float32(side), dtype=np.float32) for side in (-np.inf, np.inf)]
    random = np.random.default_rng(0).uniform(-8, 8, 20000)
    return np.concatenate([numbers, middles, *near, random, [7, 1e30, -1e30, np.inf, -np.inf]]).astype(np.float32)


def test_nearest_ties_to_even_and_the_largest_beyond() -> None:
    x = values()
    wanted = np.clip(x, -6, 6).astype(ml_dtypes.float4_e2m1fn).astype(np.float32)
    np.testing.assert_array_equal(float4.to_halves(2 * x) / 2, wanted)
    ties = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], np.float32)
    np.testing.assert_array_equal(float4.to_halves(2 * ties) / 2, [0, 1, 1, 2, 2, 4, 4])


def test_bits() -> None:
    back = float4.bytes_of(2 * NUMBERS)
    assert back.tolist() == [0, *range(1, 8), 0, *range(9, 16)], "there is no negative zero"


def test_bits_as_onnx_reads_them() -> None:
    halves = 2 * np.delete(NUMBERS, 8)
    codes = np.append(float4.bytes_of(halves), 0).astype(np.uint8)
    packed = (codes[0::2] | codes[1::2] << 4).tobytes()
    graph = helper.make_graph(
        [helper.make_node("DequantizeLinear", ["q", "s"], ["y"])],
        "g",
        [],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [16])],
        [
            helper.make_tensor("q", TensorProto.FLOAT4E2M1, [16], packed, raw=True),
            onnx.numpy_helper.from_array(np.float32(0.5).reshape(()), "s"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    (read,) = ReferenceEvaluator(model).run(None, {})
    np.testing.assert_array_equal(read, np.append(halves, 0) / 4)


@pytest.mark.parametrize("word", ["float4 ", "per block of 16"])
def test_a_spec_says_it(word: str) -> None:
    spec = QuantSpec(4, granularity=PerBlock(1, 16), scheme=Scheme.FLOAT4)
    assert word in str(spec) and spec.dtype == "float4e2m1"
