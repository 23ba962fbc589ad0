"""Quantizing for a target that cannot run a node of the model warns of it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

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


@pytest.mark.parametrize(("backend", "said"), [("qnn", "the HTP compiles for fixed ones"), ("openvino", None)])
def test_inputs_that_a_target_does_not_take(backend: str, said: str | None) -> None:
    model = build("(float[N, 8] x) => (float[N, 4] y) { y = MatMul (x, w) }", w=normal(8, 4))
    result = onnxq.quantize(model, [{"x": normal(2, 8, seed=k)} for k in range(32)], backend=backend)
    assert result.verification is not None
    told = [text for text in result.verification.warnings if text.startswith("input 'x'")]
    assert (len(told) == 1 and said in told[0]) if said else not told


def test_a_target_that_runs_them_says_nothing() -> None:
    model = recurrent()
    result = onnxq.quantize(model, feeds_for(model), backend="openvino")
    assert result.verification is not None
    assert not [text for text in result.verification.warnings if "LSTM" in text]


@pytest.mark.parametrize(
    ("backend", "said"), [("tensorrt", True), ("snpe", True), ("qnn", False), ("onnxruntime", False)]
)
def test_operators_of_onnxruntimes_own_that_are_left(backend: str, said: bool) -> None:
    """Those of its optimizer that can be written out are; of others only what onnxruntime runs has a kernel."""
    model = build(
        """(float[1, 8, 16] x) => (float[1, 8, 16] y) {
            g = com.microsoft.QuickGelu (x)
            m = MatMul (g, w)
            [corner] y = com.microsoft.Trilu (m)
        }""",
        domains={"com.microsoft": 1},
        w=normal(16, 16),
    )
    feeds = feeds_for(model)
    result = onnxq.quantize(model, feeds, backend=backend)
    assert result.verification is not None
    warned = [text for text in result.verification.warnings if "of onnxruntime's own" in text]
    found = [f for f in onnxq.check(model, backend=backend) if "of onnxruntime's own" in f.what]
    assert len(warned) == len(found) == said
    if said:
        assert found[0].level == "warning" and found[0].where == "node 'corner' (com.microsoft::Trilu)"
        assert warned[0].startswith(found[0].where)


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "tvm"])
def test_channels_in_blocks_are_said_once_and_for_every_target(backend: str) -> None:
    model = build(
        """(float[1, 16, 8, 8] x) => (float[1, 16, 4, 4] y) {
            [first] b = com.microsoft.nchwc.ReorderInput (x)
            p = com.microsoft.nchwc.MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (b)
            y = com.microsoft.nchwc.ReorderOutput <channels = 16> (p)
        }""",
        domains={"com.microsoft.nchwc": 1},
    )
    (found,) = [finding for finding in onnxq.check(model, backend=backend) if "nchwc" in finding.where]
    assert found.level == "warning" and found.where.startswith("node 'first'") and found.where.endswith(" and 2 more")
    assert "in blocks" in found.what and "ORT_ENABLE_EXTENDED" in found.hint
