from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir
import pytest

from onnxq.graph.files.load import load
from onnxq.graph.passes.constants import fold_constants, lift_constants
from onnxq.graph.recognition import recognize
from onnxq.graph.recognition.groups import Group, find_groups
from onnxq.graph.recognition.region import compute
from onnxq.graph.shapes import infer_shapes
from tests.graph.helpers import Array, build, random
from tests.models import f32, i64

CONSTANTS: dict[str, Array] = {
    "root2": np.float32(2**0.5),
    "inv_root2": np.float32(0.5**0.5),
    "one": np.float32(1),
    "half": f32([0.5]),
    "two": np.float32(2),
    "three": np.float32(3),
    "zero": np.float32(0),
    "six": np.float32(6),
    "sixth": np.float32(1 / 6),
    "k": np.float32(0.044715),
    "c": np.float32((2 / np.pi) ** 0.5),
    "quick": np.float32(1.702),
    "eps": np.float32(1e-5),
    "gamma": 1 + random(8, seed=1),
    "beta": random(8, seed=2),
    "axes": i64([-1]),
    "inv8": np.float32(1 / 8),
}


def groups(body: str, opset: int = 18, shape: str = "n,3,8", extra: str = "") -> list[Group]:
    text = f"g (float[{shape}] u) => (float[{shape}] y{extra}) {{ x = Neg(u) \n {body} \n y = Abs(t) }}"
    model = load(build(text, opset=opset, **CONSTANTS))
    lift_constants(model)
    infer_shapes(model)
    fold_constants(model)
    return find_groups(model)


ACTIVATIONS = {
    "gelu": [
        "a = Div(x, root2) \n e = Erf(a) \n p = Add(e, one) \n m = Mul(x, p) \n t = Mul(m, half)",
        "a = Mul(inv_root2, x) \n e = Erf(a) \n p = Add(one, e) \n h = Mul(half, x) \n t = Mul(h, p)",
        "a = Div(x, root2) \n e = Erf(a) \n p = Add(e, one) \n h = Mul(p, half) \n t = Mul(x, h)",
        "a = Div(x, root2) \n e = Erf(a) \n p = Add(e, one) \n m = Mul(p, x) \n t = Div(m, two)",
        (
            "p3 = Pow(x, three) \n a = Mul(p3, k) \n b = Add(x, a) \n d = Mul(b, c) \n e = Tanh(d) \n "
            "p = Add(e, one) \n h = Mul(x, half) \n t = Mul(h, p)"
        ),
        (
            "a = Mul(k, x) \n b = Mul(x, a) \n d = Mul(x, b) \n e = Add(x, d) \n f = Mul(c, e) \n "
            "g1 = Tanh(f) \n h = Add(one, g1) \n i = Mul(half, h) \n t = Mul(x, i)"
        ),
        (
            "a = Mul(x, x) \n b = Mul(a, k) \n d = Add(one, b) \n e = Mul(x, c) \n f = Mul(e, d) \n "
            "g1 = Tanh(f) \n h = Add(one, g1) \n i = Mul(x, h) \n t = Mul(i, half)"
        ),
        "a = Mul(x, quick) \n b = Sigmoid(a) \n t = Mul(x, b)",
    ],
    "silu": ["s = Sigmoid(x) \n t = Mul(x, s)", "s = Sigmoid(x) \n t = Mul(s, x)"],
    "hardswish": [
        "s = HardSigmoid<alpha = 0.1666667>(x) \n t = Mul(x, s)",
        "a = Add(x, three) \n b = Clip(a, zero, six) \n m = Mul(x, b) \n t = Div(m, six)",
        "a = Add(x, three) \n b = Clip(a, zero, six) \n d = Div(b, six) \n t = Mul(d, x)",
        "a = Add(three, x) \n b = Clip(a, zero, six) \n d = Mul(x, sixth) \n t = Mul(d, b)",
        "a = Add(x, three) \n r = Relu(a) \n b = Min(r, six) \n d = Mul(b, sixth) \n t = Mul(x, d)",
    ],
    "mish": ["s = Softplus(x) \n h = Tanh(s) \n t = Mul(x, h)"],
}

NORMALIZATIONS = {
    "layernorm": [
        (
            "m = ReduceMean<keepdims = 1>(x, axes) \n d = Sub(x, m) \n q = Pow(d, two) \n "
            "v = ReduceMean(q, axes) \n e = Add(v, eps) \n r = Sqrt(e) \n n = Div(d, r) \n "
            "a = Mul(n, gamma) \n t = Add(a, beta)"
        ),
        (
            "m = ReduceMean(x, axes) \n d = Sub(x, m) \n q = Mul(d, d) \n v = ReduceMean(q, axes) \n "
            "e = Add(v, eps) \n r = Sqrt(e) \n i = Reciprocal(r) \n t = Mul(d, i)"
        ),
        (
            "m = ReduceMean(x, axes) \n d = Sub(x, m) \n d2 = Sub(x, m) \n q = Mul(d, d) \n "
            "v = ReduceMean(q, axes) \n e = Add(v, eps) \n r = Sqrt(e) \n n = Div(d2, r) \n "
            "t = Mul(gamma, n)"
        ),
        # TensorFlow's way: x g/s + (b - m g/s)
        (
            "m = ReduceMean(x, axes) \n d = Sub(x, m) \n q = Mul(d, d) \n v = ReduceMean(q, axes) \n "
            "e = Add(v, eps) \n r = Sqrt(e) \n i = Reciprocal(r) \n s = Mul(i, gamma) \n "
            "xs = Mul(x, s) \n ms = Mul(m, s) \n o = Sub(beta, ms) \n t = Add(xs, o)"
        ),
        # Keras's way through tf2onnx, where a mean over the last of three axes is a pool
        (
            "m = GlobalAveragePool(x) \n o = Neg(m) \n d = Sub(x, m) \n q = Mul(d, d) \n v = GlobalAveragePool(q) \n "
            "e = Add(v, eps) \n r = Sqrt(e) \n i = Reciprocal(r) \n s = Mul(i, gamma) \n "
            "xs = Mul(x, s) \n ms = Mul(o, s) \n b = Add(ms, beta) \n t = Add(xs, b)"
        ),
        # JAX's way: E[x^2] - E[x]^2
        (
            "z = ReduceSum(x, axes) \n m = Mul(z, inv8) \n q = Mul(x, x) \n zq = ReduceSum(q, axes) \n "
            "mq = Mul(zq, inv8) \n m2 = Mul(m, m) \n v0 = Sub(mq, m2) \n v = Max(v0, zero) \n "
            "e = Add(v, eps) \n r = Sqrt(e) \n i = Reciprocal(r) \n s = Mul(i, gamma) \n "
            "d = Sub(x, m) \n n = Mul(d, s) \n t = Add(n, beta)"
        ),
    ],
    "rmsnorm": [
        (
            "q = Pow(x, two) \n v = ReduceMean(q, axes) \n e = Add(v, eps) \n r = Sqrt(e) \n "
            "n = Div(x, r) \n t = Mul(n, gamma)"
        ),
        (
            "q = Mul(x, x) \n v = ReduceMean(q, axes) \n e = Add(v, eps) \n r = Sqrt(e) \n "
            "i = Reciprocal(r) \n n = Mul(x, i) \n t = Mul(gamma, n)"
        ),
        (
            "q = Mul(x, x) \n v = GlobalAveragePool(q) \n e = Add(v, eps) \n r = Sqrt(e) \n "
            "i = Reciprocal(r) \n s = Mul(i, gamma) \n t = Mul(x, s)"
        ),
    ],
    "softmax": [
        "m = ReduceMax(x, axes) \n d = Sub(x, m) \n e = Exp(d) \n s = ReduceSum(e, axes) \n t = Div(e, s)",
        "e = Exp(x) \n s = ReduceSum(e, axes) \n i = Reciprocal(s) \n t = Mul(e, i)",
        "m = GlobalMaxPool(x) \n d = Sub(x, m) \n e = Exp(d) \n s = ReduceSum(e, axes) \n t = Div(e, s)",
    ],
    "logsoftmax": [
        (
            "m = ReduceMax(x, axes) \n d = Sub(x, m) \n e = Exp(d) \n s = ReduceSum(e, axes) \n "
            "l = Log(s) \n t = Sub(d, l)"
        ),
    ],
}

CASES = [(kind, body) for table in (ACTIVATIONS, NORMALIZATIONS) for kind, bodies in table.items() for body in bodies]


@pytest.mark.parametrize(("kind", "body"), CASES)
def test_recognised_whole(kind: str, body: str) -> None:
    (group,) = groups(body)
    assert group.kind == kind
    assert [value.name for value in group.inputs] == ["x"]
    assert [value.name for value in group.outputs] == ["t"]
    assert len(group.nodes) == body.count("=") - body.count("<")


@pytest.mark.parametrize(
    "body",
    [
        "s = Sigmoid(u) \n t = Mul(x, s)",  # a gate, not an activation
        "a = Add(x, two) \n b = Clip(a, zero, six) \n m = Mul(x, b) \n t = Div(m, six)",
        "a = Div(x, two) \n e = Erf(a) \n p = Add(e, one) \n m = Mul(x, p) \n t = Mul(m, half)",
        "t = Clip(x, zero, six)",
        "s = Sigmoid(x) \n t = Mul(gamma, s)",
        (
            "m = ReduceMean(x, axes) \n d = Sub(x, m) \n q = Mul(d, d) \n v = ReduceMean(q, axes) \n "
            "e = Add(v, eps) \n t = Div(d, e)"
        ),
        "e = Exp(x) \n s = ReduceSum(e, axes) \n t = Sub(e, s)",
        (
            "m = GlobalMaxPool(x) \n d = Sub(x, m) \n q = Mul(d, d) \n v = GlobalAveragePool(q) \n e = Add(v, eps) \n "
            "r = Sqrt(e) \n t = Div(d, r)"
        ),
        "q = Mul(x, x) \n v = ReduceMean(q, axes) \n e = Add(v, eps) \n r = Sqrt(e) \n t = Div(u, r)",
    ],
)
def test_not_recognised(body: str) -> None:
    assert groups(body) == []


@pytest.mark.parametrize(
    ("body", "inner"),
    [
        (ACTIVATIONS["silu"][0], "s"),
        (ACTIVATIONS["gelu"][0], "p"),
        (NORMALIZATIONS["layernorm"][0], "d"),
        (NORMALIZATIONS["softmax"][0], "e"),
    ],
)
def test_no_group_where_a_tensor_inside_is_read_elsewhere(body: str, inner: str) -> None:
    assert len(groups(body)) == 1
    assert groups(f"{body} \n z = Neg({inner})", extra=", float[a,b,c] z") == []


def test_affine_is_taken_in_once_each() -> None:
    body = NORMALIZATIONS["layernorm"][0].replace("t = Add", "f = Add") + " \n g1 = Mul(f, gamma) \n t = Relu(g1)"
    (group,) = groups(body)
    assert group.outputs[0].name == "f"


def test_two_groups_in_a_row_share_no_node() -> None:
    first = ACTIVATIONS["silu"][0].replace("t =", "w =")
    second = "s2 = Sigmoid(w) \n t = Mul(w, s2)"
    found = groups(f"{first} \n {second}")
    assert [group.kind for group in found] == ["silu", "silu"]
    assert found[0].outputs == found[1].inputs


def test_in_a_branch() -> None:
    text = """g (float[4] x, bool c) => (float[4] y) {
        y = If (c) <then_branch = a () => (float[4] p) { s = Sigmoid(x) \n p = Mul(x, s) },
                    else_branch = b () => (float[4] q) { q = Neg(x) }> }"""
    (group,) = find_groups(load(build(text)))
    assert group.kind == "silu"


@pytest.mark.parametrize("kind", NORMALIZATIONS)
def test_a_region_is_computed_once_though_it_grows_node_by_node(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[ir.Node] = []

    def counted(nodes: Sequence[ir.Node], feeds: Mapping[ir.Value, Array]) -> dict[ir.Value, Array] | None:
        computed.extend(nodes)
        return compute(nodes, feeds)

    monkeypatch.setattr(recognize, "compute", counted)
    for body in NORMALIZATIONS[kind]:
        computed.clear()
        assert [group.kind for group in groups(body)] == [kind]
        assert len(set(Counter(computed).values())) == 1, "each node once for every draw"
