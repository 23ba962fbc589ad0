"""What the operators before a tensor say of its sign."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from onnxq.graph.recognition.signs import cannot_be_negative
from tests.models import build


@pytest.mark.parametrize(
    ("body", "joined", "expected"),
    [
        ("y = Relu (x)", False, True),
        ("y = Identity (x)", False, False),
        ("a = Softmax (x)  y = Reshape (a, shape)", False, True),
        ("y = Clip (x, zero)", False, True),
        ("y = Clip (x, minus)", False, False),
        ("y = Clip (x, , zero)", False, False),
        ("a = Relu (x)  y = Add (a, a)", False, False),
        ("a = Relu (x)  y = Add (a, a)", True, True),
        ("a = Relu (x)  y = Add (a, x)", True, False),
        ("a = Relu (x)  y = Sub (a, a)", True, False),
        ("y = Mul (x, x)", False, True),
        ("y = Mul (x, zero)", False, False),
        ("a = Relu (x)  b = Cast <to = 10> (a)  c = Cast <to = 1> (b)  y = ReduceMean <keepdims = 1> (c)", False, True),
        ("a = Sqrt (x)  y = ReduceMax <axes = [1]> (a)", False, True),
        ("y = ReduceMean <axes = [1]> (x)", False, False),
        ("a = Abs (x)  b = Exp (x)  y = Div (a, b)", True, True),
    ],
)
def test_signs(body: str, joined: bool, expected: bool) -> None:
    zero, minus = np.float32(0).reshape(()), np.float32(-1).reshape(())
    model = ir.serde.deserialize_model(
        build(f"(float[2, 4] x) => (float[2, 4] y) {{ {body} }}", zero=zero, minus=minus, shape=np.array([2, 4]))
    )
    assert cannot_be_negative(model.graph.outputs[0], joined=joined) is expected


def test_known_tensors_and_the_farthest_operator() -> None:
    chain = "a = Relu (x) " + " ".join(
        f"{b} = Transpose <perm = [0, 1]> ({a})" for a, b in zip("abc", "bcy", strict=True)
    )
    model = ir.serde.deserialize_model(build(f"(float[2, 4] x) => (float[2, 4] y) {{ {chain} }}"))
    value = model.graph.outputs[0]
    assert cannot_be_negative(value, steps=4) and not cannot_be_negative(value, steps=3)
    assert cannot_be_negative(value, {"c"}, steps=1)
