"""Captured tensors are those of the model, whatever the budget."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from onnxq import Options
from onnxq.calibration.capture import capture
from onnxq.calibration.statistics import KeptSample
from tests.models import build, normal


@pytest.mark.parametrize(("budget", "groups"), [(1 << 20, 1), (4 * 32, 3), (1, 3)])
def test_every_tensor_once_for_every_sample(budget: int, groups: int) -> None:
    model = build(
        "(float[4, 8] x) => (float[4, 8] y) { a = Relu (x)\n b = MatMul (a, w)\n y = Neg (b) }", w=normal(8, 8)
    )
    samples = [KeptSample(i, {"x": normal(4, 8, seed=i)}, {}) for i in range(3)]
    names = ["x", "a", "b", "a"]
    sizes = dict.fromkeys(names, 32)
    got: dict[str, list[np.ndarray[tuple[int, ...], np.dtype[np.float32]]]] = {}
    count = 0
    ours = ir.serde.deserialize_model(model)
    for group, runs in capture(ours, names, samples, options=Options(), sizes=sizes, budget=budget):
        count += 1
        for arrays in runs:
            assert list(arrays) == group
            for name, array in arrays.items():
                got.setdefault(name, []).append(array)
    assert count == groups
    assert len(ours.graph.outputs) == 1
    for i, sample in enumerate(samples):
        x = sample.feeds["x"]
        np.testing.assert_array_equal(got["x"][i], x)
        np.testing.assert_array_equal(got["a"][i], np.maximum(x, 0))
        np.testing.assert_allclose(got["b"][i], np.maximum(x, 0) @ normal(8, 8), rtol=1e-5, atol=1e-6)


def test_what_cannot_be_observed_is_left_out() -> None:
    model = build("(float[4] x) => (float[4] y) { s = Shape (x)\n y = Relu (x) }")
    ours = ir.serde.deserialize_model(model)
    for value in ours.graph.node(0).outputs:
        value.type = ir.TensorType(ir.DataType.INT64)
    groups = list(capture(ours, ["s"], [], options=Options(), sizes={}))
    assert groups == []
