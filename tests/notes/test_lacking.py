"""Quantizing for a target that cannot run a node of the model warns of it."""

from __future__ import annotations

import numpy as np
import onnx

import onnxq
from tests.models import build, feeds_for, normal


def recurrent(count: int = 2) -> onnx.ModelProto:
    """Several LSTMs behind a product of matrices, in a row."""
    steps = "\n".join(
        f"[lstm{k}] s{k} = LSTM <hidden_size = 8> (p{k}, w, r)  p{k + 1} = Squeeze (s{k}, one)" for k in range(count)
    )
    return build(
        f"(float[4, 1, 8] x) => (float[4, 1, 8] y) {{ p0 = MatMul (x, m) {steps} y = Identity (p{count}) }}",
        m=normal(8, 8),
        w=normal(1, 32, 8),
        r=normal(1, 32, 8, seed=1),
        one=np.array([1], np.int64),
    )


def test_what_check_finds_of_the_nodes_is_a_warning_once() -> None:
    model = recurrent()
    result = onnxq.quantize(model, feeds_for(model), backend="tvm")
    assert result.verification is not None
    (told,) = [text for text in result.verification.warnings if "TVM's ONNX importer has no LSTM" in text]
    assert told.startswith("node 'lstm0'") and " and 1 more: " in told and "Cut the model" in told


def test_a_target_that_runs_them_says_nothing() -> None:
    model = recurrent()
    result = onnxq.quantize(model, feeds_for(model), backend="openvino")
    assert result.verification is not None
    assert not [text for text in result.verification.warnings if "LSTM" in text]
