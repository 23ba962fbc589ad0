"""Streams of transformers: what their blocks add to is turned through the normalizations in front of each reader."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from tests.algorithms.channels.test_streams import assert_same, turned
from tests.models import build, constants_of, images, normal

C = 8
NORMS = {
    "LayerNormalization": "n{i} = LayerNormalization (s{i}, g{i}, b{i})",
    "without offsets": "n{i} = LayerNormalization (s{i}, g{i})",
    "a chain": """mean{i} = ReduceMean <axes = [-1]> (s{i})
        away{i} = Sub (s{i}, mean{i})
        square{i} = Mul (away{i}, away{i})
        variance{i} = ReduceMean <axes = [-1]> (square{i})
        more{i} = Add (variance{i}, epsilon)
        deviation{i} = Sqrt (more{i})
        unit{i} = Div (away{i}, deviation{i})
        scaled{i} = Mul (unit{i}, g{i})
        n{i} = Add (scaled{i}, b{i})""",
    "a chain without the mean": """square{i} = Mul (s{i}, s{i})
        mean{i} = ReduceMean <axes = [-1]> (square{i})
        more{i} = Add (mean{i}, epsilon)
        root{i} = Sqrt (more{i})
        unit{i} = Div (s{i}, root{i})
        n{i} = Mul (g{i}, unit{i})""",
    "a chain without the mean, a number added to all": """square{i} = Mul (s{i}, s{i})
        mean{i} = ReduceMean <axes = [-1]> (square{i})
        more{i} = Add (mean{i}, epsilon)
        root{i} = Sqrt (more{i})
        unit{i} = Div (s{i}, root{i})
        n{i} = Add (unit{i}, half)""",
    "a chain that multiplies by nothing": """square{i} = Mul (s{i}, s{i})
        mean{i} = ReduceMean <axes = [-1]> (square{i})
        more{i} = Add (mean{i}, epsilon)
        root{i} = Sqrt (more{i})
        n{i} = Div (s{i}, root{i})""",
}


def blocks(norm: str, *, last: str = "y = MatMul (n2, w)", **more: Any) -> onnx.ModelProto:
    """Two blocks, each of which adds to what it reads normalized, and a layer behind a last normalization."""
    lines, constants = ["s0 = MatMul (x, first)"], {"first": normal(3, C), "w": normal(C, 4), **more}
    for i in (0, 1, 2):
        constants |= {f"g{i}": 1.0 + 0.5 * normal(C, seed=i + 5), f"b{i}": normal(C, seed=i)}
        lines.append(norm.format(i=i))
        if i < 2:
            constants |= {f"u{i}": normal(C, 12, seed=i), f"v{i}": normal(12, C, seed=9 + i), f"c{i}": normal(C)}
            lines += [f"a{i} = MatMul (n{i}, u{i})", f"r{i} = Relu (a{i})", f"p{i} = MatMul (r{i}, v{i})"]
            lines += [f"q{i} = Add (c{i}, p{i})", f"s{i + 1} = Add (s{i}, q{i})"]
    text = "\n".join([*lines, last])
    constants |= {"epsilon": np.float32(1e-5), "half": np.float32(0.5)}
    used = {name: array for name, array in constants.items() if f" {name})" in text or f"({name}," in text}
    used |= {name: array for name, array in constants.items() if f", {name}," in text}
    opset = 17 if "LayerNormalization" in text else 14  # from 17 on a chain becomes the operator
    return build(f"(float[1, 5, 3] x) => (float[A, B, K] y) {{ {text} }}", opset=opset, **used)


@pytest.mark.parametrize("name", NORMS)
def test_what_blocks_add_to_is_turned(name: str) -> None:
    model = blocks(NORMS[name])
    count, after = turned(model)
    assert count == 1
    assert np.abs(constants_of(after)["v0"] - constants_of(model)["v0"]).max() > 0.1, "nothing has been turned"
    assert_same(model, after, images(1, 5, 3))


BEHIND: dict[str, str] = {
    "one position": "t = Gather <axis = 1> (n2, zero)\n y = MatMul (t, w)",
    "some positions": "t = Slice (n2, zeros, twos, ones)\n y = MatMul (t, w)",
    "the mean over positions": "t = ReduceMean <axes = [1], keepdims = 0> (n2)\n y = MatMul (t, w)",
    "two parts": """h, t = Split <axis = 1> (n2, parts)
        a = MatMul (h, w)
        b = MatMul (t, w4)
        y = Concat <axis = 1> (a, b)""",
    "another order of axes": "t = Transpose <perm = [1, 0, 2]> (n2)\n y = MatMul (t, w)",
    "a scale for all": "t = Mul (n2, epsilon)\n y = MatMul (t, w)",
}


@pytest.mark.parametrize("name", BEHIND)
def test_between_the_last_normalization_and_its_layer(name: str) -> None:
    numbers = {"zero": 0, "zeros": [0], "twos": [2], "ones": [1], "parts": [2, 3]}
    more = {key: np.array(number, np.int64) for key, number in numbers.items()} | {"w4": normal(C, 4, seed=3)}
    model = blocks(NORMS["LayerNormalization"], last=BEHIND[name], **more)
    count, after = turned(model)
    assert count == 1
    assert_same(model, after, images(1, 5, 3))


def test_patches_positions_and_a_token_of_its_own() -> None:
    model = build(
        """(float[2, 3, 6, 6] x) => (float[2, 4] y) {
            patches = Conv <strides = [2, 2]> (x, p, pb)
            flat = Reshape (patches, flatter)
            tokens = Transpose <perm = [0, 2, 1]> (flat)
            own = Expand (token, both)
            all = Concat <axis = 1> (own, tokens)
            s = Add (all, positions)
            n = LayerNormalization (s, g, b)
            first = Gather <axis = 1> (n, zero)
            y = Gemm <transB = 1> (first, w, wb) }""",
        p=normal(C, 3, 2, 2),
        pb=normal(C),
        flatter=np.array([0, C, -1]),
        token=normal(1, 1, C),
        both=np.array([2, 1, C]),
        positions=normal(1, 10, C, seed=2),
        g=1.0 + 0.3 * normal(C),
        b=normal(C, seed=4),
        zero=np.array(0),
        w=normal(4, C),
        wb=normal(4),
    )
    count, after = turned(model)
    assert count == 1
    assert_same(model, after, images(2, 3, 6, 6))


def test_tokens_from_a_table() -> None:
    table, feeds = normal(20, C, seed=8), [{"ids": np.array([[3, 1, 19]])}]
    text = """(int64[1, 3] ids) => (float[1, 3, 4] y) {
        s0 = Gather (table, ids)
        p = MatMul (s0, v)
        s = Add (s0, p)
        n = LayerNormalization (s, g)
        y = MatMul (n, w) }"""
    constants: dict[str, Any] = {"table": table, "v": normal(C, C), "g": 1.0 + 0.3 * normal(C), "w": normal(C, 4)}
    count, after = turned(build(text, **constants))
    assert count == 1
    assert np.abs(constants_of(after)["table"] - table).max() > 0.1
    assert_same(build(text, **constants), after, feeds)
    shared = text.replace("4] y)", "20] y, float[1, 3, 8] z)").replace("(n, w)", "(n, w)\n z = Gather (table, ids)")
    assert turned(build(shared, **constants | {"w": normal(C, 20)}))[0] == 0


REFUSED: dict[str, str] = {
    "the normalized values are added to": "e = MatMul (n2, v2)\n f = Add (n2, e)\n y = MatMul (f, w)",
    "and to what is not": "e = Add (n2, s2)\n y = MatMul (e, w)",
    "an activation behind": "e = Relu (n2)\n y = MatMul (e, w)",
    "normalized again": "e = LayerNormalization (n2, g0)\n y = MatMul (e, w)",
    "a constant is added behind": "e = Add (n2, k)\n y = MatMul (e, w)",
    "normalized over two axes": "e = LayerNormalization <axis = 1> (s2, both)\n y = MatMul (e, w)",
    "the deviation is read": "e, m, d = LayerNormalization (s2, g0)\n f = Mul (e, d)\n y = MatMul (f, w)",
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_uses_leave_no_stream(name: str) -> None:
    more = {"v2": normal(C, C, seed=3), "k": normal(C, seed=11), "both": normal(5, C, seed=12)}
    model = blocks(NORMS["LayerNormalization"], last=REFUSED[name], **more)
    assert turned(model)[0] == 0


def test_offsets_of_a_factor_near_zero_are_left() -> None:
    model = blocks(NORMS["LayerNormalization"])
    for tensor in model.graph.initializer:
        if tensor.name == "g1":
            array = onnx.numpy_helper.to_array(tensor).copy()
            array[2] = 1e-6
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, "g1"))
    assert turned(model)[0] == 0
