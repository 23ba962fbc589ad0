"""An operator of another domain is never taken for the standard's of its name, wherever it stands in a pattern."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import shape_inference

from onnxq.graph.files.load import load
from onnxq.graph.files.save import to_proto
from onnxq.graph.passes.normalize import normalize
from tests.graph.helpers import build, random
from tests.models import f32

PICTURE = "(float[1, 4, 6, 6] x) => (float[1, 4, h, w] y)"
ROWS = "(float[2, 3, 8] x) => (float[a, b, c] y)"
CONSTANTS = {
    "k": random(4, 4, 3, 3),
    "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]),
    "four": random(4, seed=1),
    "positive": np.abs(random(4, seed=2)) + 1,
    "column": random(1, 4, 1, 1, seed=3),
    "square": random(8, 8, seed=4),
    "eight": random(8, seed=5),
    "half": f32(0.5),
    "one": f32(1),
    "two": f32(2),
    "root": f32(np.sqrt(2)),
    "three": f32(3),
    "six": f32(6),
    "sixth": f32(1 / 6),
    "zero": f32(0),
    "first": np.array([0]),
    "last": np.array([2]),
}

PATTERNS = {
    "padding": (PICTURE, "p = Pad (x, pads)\n y = Conv (p, k)"),
    "normalization": (PICTURE, "c = Conv (x, k)\n y = BatchNormalization (c, four, four, four, positive)"),
    "factor": (PICTURE, "c = Conv (x, k)\n m = Mul (c, column)\n y = Add (m, column)"),
    "bounds": (PICTURE, "c = Conv (x, k)\n l = Max (c, zero)\n y = Min (l, six)"),
    "clips": (PICTURE, "r = Relu (x)\n y = Clip (r, zero, six)"),
    "product": ("(float[2, 8] x) => (float[2, 8] y)", "y = Gemm <alpha = 2.0> (x, square, eight)"),
    "transposes": (ROWS, "t = Transpose <perm = [0, 2, 1]> (x)\n r = Relu (t)\n y = Transpose <perm = [0, 2, 1]> (r)"),
    "axes": (ROWS, "u = Unsqueeze (x, first)\n s = Squeeze (u, first)\n y = Relu (s)"),
    "einsum": (ROWS, 'y = Einsum <equation = "abc,cd->abd"> (x, square)'),
    "hard swish": (ROWS, "s = Add (x, three)\n c = Clip (s, zero, six)\n m = Mul (x, c)\n y = Mul (m, sixth)"),
    "slopes": (ROWS, "p = Relu (x)\n n = Neg (x)\n r = Relu (n)\n m = Mul (r, eight)\n y = Add (p, m)"),
    "constants": (ROWS, "e = Exp (eight)\n y = Add (x, e)"),
    "vector": ("(float[2, 3, 8] x) => (float[2, 3] y)", "y = MatMul (x, eight)"),
    "identity": (ROWS, "i = Identity (x)\n y = Relu (i)"),
}
BEHIND = {("factor", 2), ("bounds", 2), ("axes", 2), ("constants", 1), ("identity", 1)}
"""What is in front is a pattern of its own, all of the standard's operators."""
CASES = [(name, at) for name, (_, body) in PATTERNS.items() for at in range(body.count("\n") + 1)]


def pattern(name: str) -> onnx.ModelProto:
    """With the types and shapes that the standard's operators have."""
    head, body = PATTERNS[name]
    used = {key: array for key, array in CONSTANTS.items() if key in body.replace("(", " ").replace(",", " ").split()}
    used |= {key: array for key, array in CONSTANTS.items() if f"{key})" in body}
    return shape_inference.infer_shapes(build(f"g {head} {{ {body} }}", **used))


@pytest.mark.parametrize(("name", "at"), CASES)
def test_it_stays_what_it_is(name: str, at: int) -> None:
    proto = pattern(name)
    node = proto.graph.node[at]
    node.domain, node.name = "other", "theirs"
    proto.opset_import.add(domain="other", version=1)
    model = load(proto)
    normalize(model)
    (kept,) = [n for n in to_proto(model).graph.node if n.domain == "other"]
    assert (kept.name, kept.op_type, kept.attribute) == ("theirs", node.op_type, node.attribute)
    assert kept.output == node.output
    if (name, at) not in BEHIND:
        assert kept.input == node.input
        assert [n.op_type for n in to_proto(model).graph.node] == [n.op_type for n in proto.graph.node]


@pytest.mark.parametrize("name", PATTERNS)
def test_by_its_long_name_the_standard_s_domain_is_the_same(name: str) -> None:
    short, long = pattern(name), pattern(name)
    for node in long.graph.node:
        node.domain = "ai.onnx"
    models = [load(proto) for proto in (short, long)]
    for model in models:
        normalize(model)
    plain, other = (to_proto(model).graph for model in models)
    assert [node.op_type for node in plain.node] == [node.op_type for node in other.node]
    assert [node.attribute for node in plain.node] == [node.attribute for node in other.node]
    assert plain.SerializeToString() != to_proto(load(short)).graph.SerializeToString(), "the pattern means something"
