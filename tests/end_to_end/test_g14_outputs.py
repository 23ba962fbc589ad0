"""Group 14: outputs that are read inside the model too."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from onnxq import Options
from tests.contract import quantize_checked
from tests.models import build, images, normal

BODIES = {
    "conv into conv": "y = Conv (x, w)  z = Conv (y, v)",
    "conv into relu": "y = Conv (x, w)  z = Relu (y)",
    "relu into conv": "c = Conv (x, w)  y = Relu (c)  z = Conv (y, v)",
    "conv and relu both": "y = Conv (x, w)  r = Relu (y)  z = Conv (r, v)",
    "conv into float only": "y = Conv (x, w)  z = Erf (y)",
    "conv into integer and float": "y = Conv (x, w)  e = Erf (y)  c = Conv (y, v)  s = ReduceMean (e)  z = Add (c, s)",
    "movement": "y = Conv (x, w)  t = Transpose <perm = [0, 1, 3, 2]> (y)  z = Conv (t, v)",
    "movement is the output": "c = Conv (x, w)  y = Transpose <perm = [0, 1, 3, 2]> (c)  z = Conv (y, v)",
    "clip": "c = Conv (x, w)  y = Clip (c)  z = Conv (y, v)",
    "pool": "c = Conv (x, w)  y = AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (c)  z = Conv (y, v)",
    "sigmoid": "c = Conv (x, w)  y = Sigmoid (c)  z = Conv (y, v)",
    "identity": "c = Conv (x, w)  y = Identity (c)  z = Conv (c, v)",
    "add to itself": "y = Conv (x, w)  z = Add (y, y)",
}


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize(
    "options",
    [
        Options(placement="all"),
        Options(),
        Options(placement="compute"),
        Options(placement="all", symmetric=True),
        Options(placement="all", format="fake-quantize"),
        Options(placement="all", act_bits=6),
    ],
    ids=["all", "auto", "compute", "symmetric", "fake", "6 bits"],
)
def test_output_also_consumed(name: str, options: Options) -> None:
    body = BODIES[name]
    last = "4, 4" if "z = Conv" in body or "c = Conv (y" in body else "6, 6"
    constants: dict[str, Any] = {"v": normal(4, 4, 3, 3, seed=1)} if ", v)" in body else {}
    model = build(
        f"(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y, float[1, 4, {last}] z) {{ {body} }}",
        w=normal(4, 3, 3, 3),
        **constants,
    )
    least = None if options.placement == "auto" else 15
    result = quantize_checked(model, images(1, 3, 8, 8, samples=3), options, least=least)
    assert [o.name for o in result.proto.graph.output] == ["y", "z"]
    assert all(o.type.tensor_type.elem_type == TensorProto.FLOAT for o in result.proto.graph.output)


def test_every_tensor_is_an_output() -> None:
    model = build(
        """(float[1, 3, 8, 8] x) => (
            float[1, 4, 6, 6] a, float[1, 4, 6, 6] b, float[1, 4, 6, 6] c,
            float[1, 4, 3, 3] d, float[1, 36] e, float[1, 5] f
        ) {
            a = Conv (x, w)
            b = Relu (a)
            c = Add (a, b)
            d = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (c)
            e = Flatten (d)
            f = Gemm (e, g)
        }""",
        w=normal(4, 3, 3, 3),
        g=normal(36, 5),
    )
    result = quantize_checked(model, images(1, 3, 8, 8))
    assert [o.name for o in result.proto.graph.output] == list("abcdef")


def test_output_consumed_by_a_branch() -> None:
    model = build(
        """(float[1, 3, 8, 8] x, bool cond) => (float[1, 4, 6, 6] y, float[1, 4, 4, 4] z) {
            y = Conv (x, w)
            z = If (cond) <
                then_branch = a () => (float[1, 4, 4, 4] t) { t = Conv (y, v) },
                else_branch = b () => (float[1, 4, 4, 4] e) { e = MaxPool <kernel_shape = [3, 3]> (y) }
            >
        }""",
        w=normal(4, 3, 3, 3),
        v=normal(4, 4, 3, 3, seed=1),
    )
    feeds = [{**feed, "cond": np.array(i % 2 == 0)} for i, feed in enumerate(images(1, 3, 8, 8))]
    quantize_checked(model, feeds)


def test_output_behind_a_cast() -> None:
    """A Cast that feeds an output keeps its type."""
    model = build(
        "(float[1, 3, 8, 8] x) => (float16[1, 4, 6, 6] y, int32[1, 4, 6, 6] z) {"
        " c = Conv (x, w)  y = Cast <to = 10> (c)  z = Cast <to = 6> (c) }",
        w=normal(4, 3, 3, 3),
    )
    result = quantize_checked(model, images(1, 3, 8, 8))
    types = [o.type.tensor_type.elem_type for o in result.proto.graph.output]
    assert types == [onnx.TensorProto.FLOAT16, onnx.TensorProto.INT32]
