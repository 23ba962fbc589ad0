from __future__ import annotations

import pytest

from onnxq.graph.passes.fold_pad import fold_pad
from tests.graph.helpers import apply, build, ops, random
from tests.models import f32, i64

W = random(2, 3, 3, 3)


@pytest.mark.parametrize(
    "conv",
    [
        "Conv(p, w)",
        "Conv<pads = [1,0,1,0], strides = [2,1]>(p, w)",
        'Conv<auto_pad = "VALID", strides = [2,2]>(p, w)',
        'Conv<auto_pad = "NOTSET", pads = [1,1,0,0]>(p, w)',
    ],
)
@pytest.mark.parametrize(
    "pad", ["Pad(x, amounts)", "Pad(x, amounts, zero)", 'Pad<mode = "constant">(x, amounts, zero)']
)
def test_folded(pad: str, conv: str) -> None:
    proto = build(
        f"g (float[1,3,6,6] x) => (float[a,b,c,d] y) {{ p = {pad} \n y = {conv} }}",
        w=W,
        amounts=i64([0, 0, 1, 2, 0, 0, 0, 1]),
        zero=f32(0),
    )
    model, _ = apply(fold_pad, proto, {"x": random(1, 3, 6, 6)})
    assert ops(model) == ["Conv"]


@pytest.mark.parametrize("axes", [[2, 3], [-1, -2], [3]])
def test_folded_along_the_axes_that_it_names(axes: list[int]) -> None:
    proto = build(
        "g (float[1,3,6,6] x) => (float[a,b,c,d] y) { p = Pad(x, amounts, zero, axes) \n y = Conv(p, w) }",
        opset=18,
        w=W,
        amounts=i64([1, 2, 0, 3][: len(axes)] + [0, 3][: len(axes)]),
        zero=f32(0),
        axes=i64(axes),
    )
    model, _ = apply(fold_pad, proto, {"x": random(1, 3, 6, 6)})
    assert ops(model) == ["Conv"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("p = Pad(x, amounts, one) \n y = Conv(p, w)", "not pad with zero"),
        ('p = Pad<mode = "reflect">(x, amounts) \n y = Conv(p, w)', "not pad with a constant"),
        ('p = Pad(x, amounts) \n y = Conv<auto_pad = "SAME_UPPER">(p, w)', "pads automatically"),
        ("p = Pad(x, cut) \n y = Conv(p, w)", "or cuts"),
        ("p = Pad(x, batch) \n y = Conv(p, w)", "pads the batch"),
        ("p = Pad(x, channel) \n y = Conv(p, v)", "the channels"),
        ("p = Pad(x, amounts) \n q = Conv(p, w) \n s = ReduceSum<keepdims = 1>(p) \n y = Add(q, s)", "read elsewhere"),
    ],
)
def test_left_alone(body: str, reason: str) -> None:
    proto = build(
        f"g (float[1,3,6,6] x) => (float[a,b,c,d] y) {{ {body} }}",
        w=W,
        amounts=i64([0, 0, 1, 1, 0, 0, 1, 1]),
        cut=i64([0, 0, -1, 0, 0, 0, 0, 0]),
        batch=i64([1, 0, 0, 0, 0, 0, 0, 0]),
        channel=i64([0, 0, 0, 0, 0, 1, 0, 0]),
        v=random(2, 4, 3, 3),
        one=f32(1),
    )
    model, notes = apply(fold_pad, proto, {"x": random(1, 3, 6, 6)})
    assert "Pad" in ops(model)
    assert reason in notes[0].message


@pytest.mark.parametrize(
    "node", ["ConvTranspose(p, v)", "MaxPool<kernel_shape = [3, 3]>(p)", "AveragePool<kernel_shape = [3, 3]>(p)"]
)
def test_other_operators_see_the_padding(node: str) -> None:
    proto = build(
        f"g (float[1,3,6,6] x) => (float[a,b,c,d] y) {{ p = Pad(x, amounts) \n y = {node} }}",
        v=random(3, 2, 3, 3),
        amounts=i64([0, 0, 1, 1, 0, 0, 1, 1]),
    )
    model, notes = apply(fold_pad, proto, {"x": random(1, 3, 6, 6) - 5})
    assert ops(model) == ["Pad", node.partition("<")[0].partition("(")[0]] and notes == []
