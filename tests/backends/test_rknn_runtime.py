"""RKNN-Toolkit2's simulator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxq
from onnxq import Options
from onnxq.errors import VerificationError
from onnxq.runtimes.child import examine, missing
from onnxq.runtimes.rknn import RUNTIME
from tests.backends.test_rknn import (
    IN_NO_MODEL,
    expected,
    gate,
    heads,
    in_no_model,
    masked,
    normed,
    recurrent,
    transposed,
)
from tests.models import build, feeds_for, images, normal
from tests.targets import branches, upsampling

REASON = missing(RUNTIME)
pytestmark = [pytest.mark.runtime, pytest.mark.skipif(REASON is not None, reason=str(REASON))]


def plain() -> onnx.ModelProto:
    return build(
        """(float[1, 3, 16, 16] x) => (float[1, 10] y) {
            [stem] a = Conv <pads = [1, 1, 1, 1]> (x, w1, b1)
            [act] r = Relu (a)
            [depthwise] d = Conv <group = 8> (r, w2)
            [pool] p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (d)
            [flat] f = Flatten (p)
            [head] y = Gemm <transB = 1> (f, w3, b3)
        }""",
        w1=normal(8, 3, 3, 3),
        b1=normal(8, seed=1, scale=0.1),
        w2=normal(8, 1, 3, 3, seed=2),
        w3=normal(10, 392, seed=3, scale=0.1),
        b3=normal(10, seed=4, scale=0.1),
    )


def matmul() -> onnx.ModelProto:
    return build("(float[1, 2, 8, 16] x) => (float[1, 2, 8, 8] y) { y = MatMul (x, w) }", w=normal(16, 8))


def normalized() -> onnx.ModelProto:
    """A product that the builder hangs on where it is quantized, a normalization that does not say its epsilon."""
    return build(
        """(float[1, 3, 8, 8] x) => (float[1, 64, 8] y) {
            c = Conv (x, w1)
            r = Relu (c)
            f = Reshape (r, shape)
            t = Transpose <perm = [0, 2, 1]> (f)
            n = LayerNormalization <axis = -1> (t, s, b)
            y = MatMul (n, w2)
        }""",
        w1=normal(8, 3, 1, 1),
        shape=np.array([1, 8, 64]),
        s=normal(8, seed=1) + 1,
        b=normal(8, seed=2),
        w2=normal(8, 8, seed=3),
        opset=17,
    )


def skip() -> onnx.ModelProto:
    """A convolution that is added to something: its Relu must not be left to the quantizer between the two."""
    return build(
        """(float[1, 3, 12, 12] x) => (float[1, 8, 12, 12] y) {
            [stem] a = Conv <pads = [1, 1, 1, 1]> (x, w1, b1)
            [first] r = Relu (a)
            [body] c = Conv <pads = [1, 1, 1, 1]> (r, w2, b2)
            [second] s = Relu (c)
            [sum] y = Add (s, r)
        }""",
        w1=normal(8, 3, 3, 3),
        b1=normal(8, seed=1, scale=0.1),
        w2=normal(8, 8, 3, 3, seed=2),
        b2=normal(8, seed=3, scale=0.1),
    )


def gated() -> onnx.ModelProto:
    """Inputs of two ranks, a function that is a table of codes, and a mean of a narrower range than its input."""
    return build(
        """(float[1, 4, 9, 9] x, float[1, 4] z) => (float[1, 4] y) {
            h = HardSigmoid <alpha = 0.1667, beta = 0.5> (x)
            g = GlobalAveragePool (h)
            f = Flatten (g)
            y = Mul (f, z)
        }"""
    )


def read_outputs() -> onnx.ModelProto:
    """Outputs that the model reads itself."""
    return build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 8, 8] a, float[1, 4, 8, 8] r, float[1, 4, 8, 8] y) {
            [first] a = Conv <pads = [1, 1, 1, 1]> (x, w)
            [relu] r = Relu (a)
            [last] y = Conv <pads = [1, 1, 1, 1]> (r, v)
        }""",
        w=normal(4, 3, 3, 3),
        v=normal(4, 4, 3, 3, seed=1),
    )


def test_layers_agree_from_equal_integers(tmp_path: Path) -> None:
    samples = feeds_for(gated(), samples=2)
    made = onnxq.quantize(gated(), samples, backend="rknn", output=tmp_path, options=Options(placement="all"))
    found = onnxq.verify(made.files[0], samples, backend="rknn", timeout=120, layers=True)
    assert {layer.tensor for layer in found.layers} >= {"h", "g"}
    assert max(layer.steps for layer in found.layers) <= 1, found.layers


@pytest.mark.parametrize(
    ("graph", "shape"),
    [
        (skip, (1, 3, 12, 12)),
        (plain, (1, 3, 16, 16)),
        (branches, (1, 4, 8, 8)),
        (upsampling, (1, 4, 8, 8)),
        (matmul, (1, 2, 8, 16)),
        (normalized, (1, 3, 8, 8)),
        (read_outputs, (1, 3, 8, 8)),
        (heads, (1, 8, 4, 4)),
        (gate, (1, 3, 8, 8)),
        (expected, (1, 4, 8, 8)),
        (masked, (1, 6, 16)),
        (normed, (1, 6, 6, 16)),
        (transposed, (1, 4, 8, 8)),
        (recurrent, (6, 1, 8)),
    ],
)
def test_the_simulator_agrees(graph: object, shape: tuple[int, ...], tmp_path: Path) -> None:
    assert callable(graph)
    samples = images(*shape, samples=2)
    made = onnxq.quantize(graph(), samples, backend="rknn", output=tmp_path)
    found = onnxq.verify(made.files[0], samples, backend="rknn", timeout=120)
    assert found.runtime is not None and found.runtime.startswith("RKNN")
    assert found.worst is not None and found.worst[1].sqnr > 25, found.outputs
    assert any("model.rknn" in remark for remark in found.remarks)


def test_integers_that_float_operators_read_too(tmp_path: Path) -> None:
    """The builder makes floats of what they share with a convolution: "Conv bias scale is empty"."""
    model = build(
        """(float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) {
            a = Conv (x, w1)
            b = Conv (a, w2)
            y = Add (a, b)
        }""",
        w1=normal(4, 4, 1, 1),
        w2=normal(4, 4, 1, 1, seed=1),
    )
    samples = images(1, 4, 8, 8, samples=2)
    options = Options(placement="compute")
    made = onnxq.quantize(model, samples, backend="rknn", output=tmp_path, options=options)
    assert len(made.plan.quantized) == 2
    found = onnxq.verify(made.files[0], samples, backend="rknn", timeout=120)
    assert found.worst is not None and found.worst[1].sqnr > 25, found.outputs


@pytest.mark.parametrize("node", [node for node, _ in IN_NO_MODEL])
def test_what_check_says_that_it_builds_in_no_model(node: str, tmp_path: Path) -> None:
    model, path = in_no_model(node), tmp_path / "m.onnx"
    model.ir_version = 9  # the newest that the toolkit's own onnx knows
    onnx.save(model, path)
    with pytest.raises(VerificationError, match="RKNN"):
        examine(RUNTIME, path, feeds_for(model, samples=1), timeout=120)


def test_an_input_that_nothing_reads_is_left_out(tmp_path: Path) -> None:
    """The toolkit refuses its name."""
    model = build(
        "(float[1, 3, 8, 8] x, float[1, 4] z) => (float[1, 4, 8, 8] y) { y = Conv (x, w) }", w=normal(4, 3, 1, 1)
    )
    feeds = feeds_for(model, samples=2)
    made = onnxq.quantize(model, feeds, backend="rknn", output=tmp_path / "q.onnx")
    agreement = onnxq.verify(made, feeds)
    assert agreement.worst is not None and agreement.worst[1].sqnr > 35
