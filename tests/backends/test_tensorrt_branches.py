"""Which branch of a residual Add is the shortcut."""

from __future__ import annotations

from functools import partial

import onnx
import onnx_ir as ir
import pytest

from onnxq.backends.tensorrt.branches import shortcut
from tests.counting import lines_of
from tests.models import build, normal


def stream(adds: int, left: str, right: str) -> onnx.ModelProto:
    """A residual stream s0, s1 … in which each Add reads two branches of the one before it."""
    blocks = []
    for i in range(adds):
        for branch, layers in (("l", left), ("r", right)):
            value = f"s{i}"
            for depth, op in enumerate(layers.split()):
                made = f"{branch}{i}_{depth}"
                blocks.append(f"{made} = {op} ({value}{', w' if op == 'Conv' else ''})")
                value = made
        blocks.append(f"s{i + 1} = Add (l{i}_{len(left.split()) - 1}, r{i}_{len(right.split()) - 1})")
    body = f"s0 = Conv (x, w) {' '.join(blocks)} y = Relu (s{adds})"
    return build(f"(float[1, 2, 4, 4] x) => (float[1, 2, 4, 4] y) {{ {body} }}", w=normal(2, 2, 1, 1))


def last_add(model: onnx.ModelProto) -> ir.Node:
    return [node for node in ir.from_proto(model).graph if node.op_type == "Add"][-1]


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ("Conv", "Conv Relu Conv", (0,)),
        ("Conv Relu Conv", "Conv", (1,)),
        ("Conv", "Conv", (0,)),
        ("Conv Relu", "Conv Relu Conv Relu Conv Relu Conv Relu Conv Relu Conv Relu", (0,)),
        ("Conv Relu Conv Relu Conv Relu Conv Relu Conv Relu Conv Relu", "Conv Relu", (1,)),
        ("Relu", "Conv", (0,)),
        ("Conv", "Relu", (1,)),
        ("Relu", "Relu", ()),
    ],
)
@pytest.mark.parametrize("adds", [1, 5])
def test_the_branch_of_fewer_operators_of_its_own_is_the_shortcut(
    left: str, right: str, expected: tuple[int, ...], adds: int
) -> None:
    assert shortcut(last_add(stream(adds, left, right))) == expected


def test_what_one_branch_reads_from_far_above_is_behind_both_where_the_other_has_it_too() -> None:
    model = build(
        """(float[1, 2, 4, 4] x) => (float[1, 2, 4, 4] y) {
            a = Conv (x, w) a1 = Relu (a) a2 = Relu (a1) a3 = Relu (a2) s = Conv (a3, w)
            l = Mul (s, a) l1 = Conv (l, w)
            r = Conv (s, w) r1 = Relu (r) r2 = Conv (r1, w)
            y = Add (l1, r2)
        }""",
        w=normal(2, 2, 1, 1),
    )
    assert shortcut(last_add(model)) == (0,)


def test_how_far_it_looks_does_not_grow_with_the_model() -> None:
    short, long = (
        lines_of(partial(shortcut, last_add(stream(adds, "Conv", "Conv Relu Conv"))), "backends/tensorrt/")
        for adds in (5, 200)
    )
    assert short == long > 0
