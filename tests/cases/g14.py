"""Group 14: outputs that are read inside the model too."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.cases.case import Given, case
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


@case("G14")
def every_tensor_is_an_output() -> Given:
    """Every tensor is a graph output."""
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
    return Given(model, images(1, 3, 8, 8))


@case("G14")
def output_consumed_by_a_branch() -> Given:
    """A graph output is read inside an If."""
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
    return Given(model, feeds)


@case("G14")
def output_behind_a_cast() -> Given:
    """Casts feed graph outputs of float16 and int32."""
    model = build(
        "(float[1, 3, 8, 8] x) => (float16[1, 4, 6, 6] y, int32[1, 4, 6, 6] z) {"
        " c = Conv (x, w)  y = Cast <to = 10> (c)  z = Cast <to = 6> (c) }",
        w=normal(4, 3, 3, 3),
    )
    return Given(model, images(1, 3, 8, 8))


@case("G14", least=15)
def output_also_consumed(name: str = "conv into conv") -> Given:
    """A graph output is read by a Conv: its name and type are kept."""
    body = BODIES[name]
    last = "4, 4" if "z = Conv" in body or "c = Conv (y" in body else "6, 6"
    constants: dict[str, Any] = {"v": normal(4, 4, 3, 3, seed=1)} if ", v)" in body else {}
    model = build(
        f"(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y, float[1, 4, {last}] z) {{ {body} }}",
        w=normal(4, 3, 3, 3),
        **constants,
    )
    return Given(model, images(1, 3, 8, 8, samples=3))


@case("G14", asked={"symmetric": True}, least=15)
def relu_also_consumed() -> Given:
    """A graph output behind a Relu is read by a Conv, activations are symmetric."""
    return output_also_consumed("relu into conv")


@case("G14", least=15)
def output_read_by_integers_and_floats() -> Given:
    """A graph output has an integer and a float reader."""
    return output_also_consumed("conv into integer and float")
