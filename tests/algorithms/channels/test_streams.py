"""Streams: turning what they hold leaves the model what it is; where anything else touches them there is none."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxq.algorithms.channels.rotation import rotation
from onnxq.algorithms.channels.streams import find_streams, turn
from onnxq.graph.files.load import load
from onnxq.graph.lookup import Lookup
from onnxq.graph.passes.normalize import normalize
from tests.contract import infer
from tests.models import build, constants_of, images, normal

C = 8
CONV: dict[str, Any] = {"u": normal(C, 3, 3, 3), "ub": normal(C), "w": normal(4, C, 3, 3, seed=1), "wb": normal(4)}
MATRICES: dict[str, Any] = {"u": normal(3, C), "ub": normal(C), "w": normal(C, 4, seed=1), "wb": normal(4)}
IMAGE = "(float[1, 3, 9, 9] x) => (float[1, 4, M, N] y)"
FIRST, LAST = "a = Conv (x, u, ub)", "y = Conv <pads = [1, 1, 1, 1]> (s, w, wb)"

TURNED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "two convolutions": (IMAGE, "s = Identity (a)", CONV),
    "a residual branch": (
        IMAGE,
        "e = Conv (a, v)\n r = Relu (e)\n p = Conv (r, q, ub)\n s = Add (a, p)",
        CONV | {"v": normal(12, C, 1, 1, seed=4), "q": normal(C, 12, 1, 1, seed=5)},
    ),
    "a branch without activation": (
        IMAGE,
        "p = Conv (a, v)\n s = Sub (p, a)",
        CONV | {"v": normal(C, C, 1, 1, seed=4)},
    ),
    "one number a channel": (IMAGE, "s = Add (a, c)", CONV | {"c": normal(C, 1, 1, seed=6)}),
    "one number for all": (IMAGE, "s = Add (c, a)", CONV | {"c": np.float32(0.7)}),
    "a number of its own for each": (IMAGE, "s = Sub (c, a)", CONV | {"c": normal(C, 7, 7, seed=6)}),
    "an average pool": (IMAGE, "s = AveragePool <kernel_shape = [2, 2], pads = [1, 1, 1, 1]> (a)", CONV),
    "zeros around it": (IMAGE, "s = Pad (a, pads)", CONV | {"pads": np.array([0, 0, 1, 2, 0, 0, 0, 1])}),
    "one dimension": (
        "(float[1, 3, 9] x) => (float[1, 4, M] y)",
        "s = Identity (a)",
        {"u": normal(C, 3, 3), "ub": normal(C), "w": normal(4, C, 3, seed=1), "wb": normal(4)},
    ),
}


def turned(model: onnx.ModelProto, seed: int = 0) -> tuple[int, onnx.ModelProto]:
    """How many streams there are, and the model with all of them turned."""
    made = load(model)
    normalize(made, min_opset=14)
    streams = find_streams(made)
    random = np.random.default_rng(seed)
    lookup = Lookup(made)
    for stream in streams:
        turn(lookup, stream, rotation(stream.size, random, keeps_mean=stream.centred))
    return len(streams), ir.to_proto(made)


def assert_same(model: onnx.ModelProto, after: onnx.ModelProto, feeds: list[dict[str, Any]]) -> None:
    before, now = (infer(m, feeds, optimize=False)["y"] for m in (model, after))
    for want, got in zip(before, now, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5 * float(np.abs(want).max()), rtol=0)


@pytest.mark.parametrize("name", TURNED)
def test_what_the_model_computes_stays(name: str) -> None:
    signature, middle, constants = TURNED[name]
    last = LAST if signature == IMAGE else "y = Conv (s, w, wb)"
    model = build(f"{signature} {{ {FIRST}\n {middle}\n {last} }}", **constants)
    count, after = turned(model)
    assert count == 1
    assert np.abs(constants_of(after)["u"] - constants["u"]).max() > 0.1, "nothing has been turned"
    assert_same(model, after, images(*([1, 3, 9, 9] if signature == IMAGE else [1, 3, 9])))


PRODUCTS = {
    "MatMul with its bias": "m = MatMul (x, u)\n s = Add (ub, m)\n p = MatMul (s, w)\n y = Add (p, wb)",
    "Gemm": "s = Gemm <beta = 0.5, alpha = 2.0> (x, u, ub)\n y = Gemm (s, w, wb)",
    "Gemm, one bias for all": "s = Gemm (x, u, one)\n y = Gemm (s, w, wb)",
    "Gemm, transposed": "s = Gemm <transB = 1> (x, ut, ub)\n y = Gemm <transB = 1> (s, wt, wb)",
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_matrix_products(name: str) -> None:
    more = {"ut": MATRICES["u"].T.copy(), "wt": MATRICES["w"].T.copy(), "one": np.array([0.4], np.float32)}
    used = {
        key: array
        for key, array in (MATRICES | more).items()
        if f" {key}" in PRODUCTS[name] or f"({key}" in PRODUCTS[name]
    }
    model = build(f"(float[5, 3] x) => (float[5, 4] y) {{ {PRODUCTS[name]} }}", **used)
    count, after = turned(model)
    assert count == 1
    assert_same(model, after, images(5, 3))


def test_transposed_convolutions() -> None:
    model = build(
        """(float[1, 3, 5, 5] x) => (float[1, 4, M, N] y) {
            a = ConvTranspose <strides = [2, 2]> (x, u, ub)
            y = ConvTranspose (a, w) }""",
        u=normal(3, C, 2, 2),
        ub=normal(C),
        w=normal(C, 4, 2, 2, seed=1),
    )
    count, after = turned(model)
    assert count == 1
    assert_same(model, after, images(1, 3, 5, 5))


OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "an activation": ("s = Relu (a)", {}),
    "a maximum pool": ("s = MaxPool <kernel_shape = [2, 2]> (a)", {}),
    "a depthwise layer reads it": ("d = Conv <group = 8> (a, v)\n s = Add (a, d)", {"v": normal(C, 1, 1, 1)}),
    "a layer that is none": ("r = Relu (x2)\n s = Add (a, r)", {}),
    "magnitudes": ("n = Abs (a)\n s = Add (a, n)", {}),
    "ones around it": ("s = Pad (a, pads, one)", {"pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "one": np.float32(1)}),
    "more channels": (
        "s = Pad (t, pads)\n t = Conv (x, v)",
        {"pads": np.array([0, 1, 0, 0, 0, 1, 0, 0]), "v": normal(C - 2, 3, 3, 3)},
    ),
    "edges repeated": ('s = Pad <mode = "edge"> (a, pads)', {"pads": np.array([0, 0, 1, 1, 0, 0, 1, 1])}),
    "one number a position, which would become one a channel too": (
        "s = Sub (a, c)",
        {"c": normal(1, 1, 7, 7, seed=6)},
    ),
    "one number a column": ("s = Sub (a, c)", {"c": normal(7, seed=6)}),
    "some dropped, as in training": (
        "s = Dropout (a, half, yes)",
        {"half": np.float32(0.5), "yes": np.array(True)},
    ),
    "its weight is computed with": ("k = Conv (x, u)\n s = Add (a, k)", {}),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_operators_leave_no_stream(name: str) -> None:
    middle, constants = OTHERS[name]
    first = FIRST if "(a" in middle or "a," in middle else ""
    signature = IMAGE.replace("x)", "x, float[1, 8, 7, 7] x2)") if "x2" in middle else IMAGE
    lines = middle.split("\n")[::-1] if name == "more channels" else [middle]
    model = build(f"{signature} {{ {first}\n {chr(10).join(lines)}\n {LAST} }}", **CONV, **constants)
    assert turned(model)[0] == 0


def test_a_shape_is_asked() -> None:
    model = build(
        f"""(float[N, 3, H, W] x) => (float[N, 4, H2, W2] y) {{
            {FIRST}
            n = Shape (a)
            f = ConstantOfShape (n)
            s = Identity (a)
            z = Conv <pads = [1, 1, 1, 1]> (s, w, wb)
            g = ReduceSum <keepdims = 0> (f)
            y = Add (z, g) }}""",
        **CONV,
    )
    count, after = turned(model)
    assert count == 1
    assert_same(model, after, images(1, 3, 9, 9))


def test_a_single_channel_is_left() -> None:
    model = build(
        "(float[5, 3] x) => (float[5, 4] y) { a = MatMul (x, u)\n y = MatMul (a, w) }", u=normal(3, 1), w=normal(1, 4)
    )
    assert turned(model)[0] == 0


def test_what_is_an_output_of_the_model_is_left() -> None:
    model = build(
        f"""(float[1, 3, 9, 9] x) => (float[1, 4, M, N] y, float[1, 8, 7, 7] s) {{
            {FIRST}
            s = Identity (a)
            {LAST} }}""",
        **CONV,
    )
    assert turned(model)[0] == 0


def test_what_a_subgraph_reads_is_left() -> None:
    model = build(
        f"""(float[1, 3, 9, 9] x, bool c) => (float[1, 4, M, N] y) {{
            {FIRST}
            z = If (c) <
                then_branch = t () => (p) {{ p = Conv (a, v) }},
                else_branch = e () => (q) {{ q = Conv (a, v2) }}
            >
            s = Add (a, z)
            {LAST} }}""",
        v=normal(C, C, 1, 1),
        v2=normal(C, C, 1, 1, seed=3),
        **CONV,
    )
    assert turned(model)[0] == 0
