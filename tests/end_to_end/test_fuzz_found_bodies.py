"""Faults that random graphs with loops and branches showed, each in its smallest form."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from onnxq import quantize
from tests.contract import ALL, quantize_checked
from tests.models import build, f32, images, normal


@pytest.mark.parametrize(
    "algorithm",
    ["adaround", "bias_correction", "bias_correction:method=empirical", "gptq", "seqmse", "smoothquant"],
)
@pytest.mark.parametrize("layer", ["Conv <pads = [1, 1, 1, 1]> (c, w, b)", "MatMul (c, v)"])
def test_algorithms_inside_a_loop(layer: str, algorithm: str) -> None:
    """What a Loop's body makes is collected with one more axis in front."""
    model = build(
        f"""(float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) {{
            y = Loop (three, , x) <body = g (int64 i, bool k, float[1, 4, 8, 8] c) => (bool q, float[1, 4, 8, 8] d) {{
                q = Identity (k)
                e = {layer}
                d = Tanh (e)
            }}>
        }}""",
        w=normal(4, 4, 3, 3) / 2,
        b=normal(4),
        v=normal(8, 8) / 2,
        three=np.array(3),
    )
    assert quantize_checked(model, images(1, 4, 8, 8), replace(ALL, algorithms=(algorithm,))).worst > 25


def test_indices_of_a_pool_that_nothing_reads() -> None:
    """onnxruntime takes a quantizer for each output of a MaxPool for a sign that it computes in integers."""
    model = build(
        """(float[1, 12] x, bool c) => (float[1, 12, N] y) {
            u = Unsqueeze (x, axes)
            p, i = MaxPool <kernel_shape = [2], pads = [1, 1]> (u)
            m = Mul (p, s)
            v = Conv <group = 12, kernel_shape = [2]> (m, w)
            y = If (c) <then_branch = a () => (float[1, 12, 2] q) { q = HardSwish (p) },
                        else_branch = b () => (float[1, 12, 1] r) { r = Neg (v) }>
        }""",
        axes=np.array([2]),
        s=f32([0.7]),
        w=normal(12, 1, 2),
    )
    quantize_checked(model, [{**f, "c": np.array(k % 2 == 0)} for k, f in enumerate(images(1, 12))])


@pytest.mark.parametrize("op", ["Expand (c, shape)", "Identity (c)"])
def test_no_operation_in_front_of_a_branch(op: str) -> None:
    """What onnxruntime takes out between two quantizers, the second of which a branch reads, ends its process."""
    model = build(
        f"""(float[1, 4, 6, 6] x) => (float[1, 4, 4, 4] y) {{
            c = Conv (x, w)
            e = {op}
            m = ReduceMax <keepdims = 0> (x)
            above = Greater (m, zero)
            y = If (above) <
                then_branch = yes () => (float[1, 4, 4, 4] a) {{ a = Mul (e, e) }},
                else_branch = no () => (float[1, 4, 4, 4] b) {{ b = Add (c, c) }}
            >
        }}""",
        w=normal(4, 4, 3, 3),
        zero=f32(0),
        shape=np.array([1, 4, 4, 4], np.int64),
    )
    assert quantize_checked(model, images(1, 4, 6, 6)).worst > 30


def test_constant_of_one_number_when_the_opset_is_raised() -> None:
    """onnx's converter knows no type of a Constant given as a number."""
    model = build(
        """(float[1, 4, 6, 6] x) => (float[1, 4, 6, 6] y) {
            v = Constant <value_float = 1.0> ()
            p = Pad <mode = "constant"> (x, pads, v)
            y = Conv (p, w)
        }""",
        opset=12,
        w=normal(4, 4, 3, 3),
        pads=np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64),
    )
    assert quantize_checked(model, images(1, 4, 6, 6)).worst > 30


def test_numbers_shared_across_graphs() -> None:
    """Ties reach from a branch to what stands around it: their scale is an initializer that both can read."""
    model = build(
        """(float[1, 4, 6, 6] x) => (float[1, 8, 6, 6] y) {
            m = ReduceMax <keepdims = 0> (x)
            above = Greater (m, zero)
            c = Conv <pads = [1, 1, 1, 1]> (x, w)
            p = If (above) <
                then_branch = yes () => (float[1, 4, 6, 6] a) { a = Conv <pads = [1, 1, 1, 1]> (x, w) },
                else_branch = no () => (float[1, 4, 6, 6] b) { b = Relu (x) }
            >
            y = Concat <axis = 1> (p, c)
        }""",
        w=normal(4, 4, 3, 3),
        zero=f32(0),
    )
    for backend in ("vitis", "onnxruntime", "tensorrt"):
        made = quantize(model, images(1, 4, 6, 6), backend=backend, options=ALL)
        assert made.rendered().clone().graph.outputs[0].name == "y"


def test_softmax_at_the_end_of_a_branch() -> None:
    """onnxruntime takes the If out, and then the quantizer of the Softmax with that of what the If gives."""
    model = build(
        """(float[2, 4, 4] x) => (float[2, 4, 6] y) {
            p = If (never) <
                then_branch = yes () => (float[2, 4, 4] a) { a = Relu (x) },
                else_branch = no () => (float[2, 4, 4] b) {
                    s = Mul (x, x)
                    b = Softmax <axis = -1> (s)
                }
            >
            y = MatMul (p, w)
        }""",
        never=np.asarray(False),
        w=normal(4, 6),
    )
    feeds = [{"x": f["x"] * f32(0.1)} for f in images(2, 4, 4)]
    assert quantize_checked(model, feeds).worst > 35


@pytest.mark.parametrize("outer", [True, False])
@pytest.mark.parametrize("inner", [True, False])
def test_branch_that_is_never_taken_inside_a_branch(inner: bool, outer: bool) -> None:
    """onnxruntime keeps of such an If what is taken, and loses what was to be seen of the other branch."""
    model = build(
        """(float[5] x, float[6] z, bool c) => (float[N] y) {
            y = If (c) <then_branch = a () => (float[M] p) {
                            i = If (t) <then_branch = d () => (float[K] u) { u = Identity (x) },
                                        else_branch = e () => (float[L] v) { v = MatMul (z, w) }>
                            p = Concat <axis = 0> (x, i)
                        },
                        else_branch = b () => (float[O] q) { q = MatMul (z, w) }>
        }""",
        w=normal(6, 8),
        t=np.array(inner),
    )
    feeds = [{"x": f["x"], "z": f["z"], "c": np.array(outer)} for f in images_of(5, 6)]
    assert quantize_checked(model, feeds).worst > 25


def images_of(first: int, second: int) -> list[dict[str, np.ndarray]]:
    """Samples of two vectors."""
    random = np.random.default_rng(0)
    return [{"x": f32(random.standard_normal(first)), "z": f32(random.standard_normal(second))} for _ in range(6)]
