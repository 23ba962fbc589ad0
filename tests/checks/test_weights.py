"""Weights are looked at one at a time, and none of them stays in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from onnxq.checks.weights import check_weights
from onnxq.graph.files.load import load
from tests.models import build, normal


def test_weights_in_a_data_file_are_read_and_not_mapped(tmp_path: Path) -> None:
    weight = normal(64, 32)
    weight[3, 4] = np.nan
    text = "(float[N, 64] x) => (float[N, 32] y) { m = MatMul (x, w) y = Add (m, b) }"
    onnx.save_model(build(text, w=weight, b=normal(512, 1, 32)), tmp_path / "m.onnx", save_as_external_data=True)
    model = load(tmp_path / "m.onnx")
    assert [finding.what for finding in check_weights(model)] == ["its constant 'w' holds 1 NaN"]
    tensors = [value.const_value for value in model.graph.initializers.values()]
    outside = [tensor for tensor in tensors if isinstance(tensor, ir.ExternalTensor)]
    assert outside
    assert all(tensor.raw is None for tensor in outside)
