"""Group 11: branches, loops, scans and model-local functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper, parser

from tests.cases.case import Given, case
from tests.models import build, f32, images, normal


def choosing(feeds: list[dict[str, NDArray[np.float32]]], *, always: bool | None = None) -> list[Any]:
    """Feeds with a flag that changes from sample to sample, or never."""
    return [{**sample, "flag": np.array(i % 2 == 0 if always is None else always)} for i, sample in enumerate(feeds)]


def branch_model(then: str, other: str, **constants: Any) -> onnx.ModelProto:
    """An If behind a Conv: ``then`` and ``other`` compute t and e of the Conv's output h."""
    return build(
        f"""(float[1, 3, 8, 8] x, bool flag) => (float[1, 4, 8, 8] y) {{
            [first] h = Conv <pads = [1, 1, 1, 1]> (x, w)
            [choice] y = If (flag) <
                then_branch = yes () => (float[1, 4, 8, 8] t) {{ {then} }},
                else_branch = no () => (float[1, 4, 8, 8] e) {{ {other} }}
            >
        }}""",
        w=normal(4, 3, 3, 3),
        **constants,
    )


CONV = "Conv <pads = [1, 1, 1, 1]>"


def loop_model(body: str, *, scan: bool = False) -> onnx.ModelProto:
    extra = ", float[1, 4, 8, 8] seen" if scan else ""
    outputs = "float[1, 4, 8, 8] y" + (", float[K, 1, 4, 8, 8] all" if scan else "")
    return build(
        f"""(float[1, 3, 8, 8] x) => ({outputs}) {{
            [first] h = {CONV} (x, w)
            [loop] y{", all" if scan else ""} = Loop (three, go, h) <
                body = each (int64 i, bool before, float[1, 4, 8, 8] old)
                    => (bool after, float[1, 4, 8, 8] new{extra}) {{ {body} }}
            >
        }}""",
        w=normal(4, 3, 3, 3),
        v=normal(4, 4, 3, 3, seed=1, scale=0.12),
        three=np.array(3),
        go=np.array(True),
    )


def scan_model() -> onnx.ModelProto:
    return build(
        """(float[5, 2, 8] x, float[2, 8] start) => (float[2, 8] last, float[5, 2, 8] all) {
            [outer] h = MatMul (x, u)
            [scan] last, all = Scan (start, h) <
                num_scan_inputs = 1,
                body = step (float[2, 8] state, float[2, 8] row) => (float[2, 8] next, float[2, 8] out) {
                    [a] s = MatMul (state, v)
                    sum = Add (s, row)
                    next = Tanh (sum)
                    [b] out = MatMul (next, v)
                }
            >
        }""",
        u=normal(8, 8),
        v=normal(8, 8, seed=1),
    )


FUNCTION = """
<ir_version: 8, opset_import: ["" : 17, "local" : 1], producer_name: "someone">
tiny (float[1, 3, 8, 8] x) => (float[1, 4, 8, 8] y) {
    a = local.Block (x, w1)
    y = local.Block (a, w2)
}
<domain: "local", opset_import: ["" : 17]>
Block (x, w) => (y) {
    c = Conv <pads = [1, 1, 1, 1]> (x, w)
    y = Relu (c)
}
"""


@case("G11")
def if_outer_scope_weight() -> Given:
    """Both branches of an If read one outer weight."""
    model = branch_model(f"[a] t = {CONV} (h, v)", f"[b] e = {CONV} (h, v)", v=normal(4, 4, 3, 3, seed=1))
    return Given(model, choosing(images(1, 3, 8, 8)))


@case("G11")
def weight_only_inside_one_branch() -> Given:
    """A weight inside one branch, the other passes its input through."""
    model = branch_model(f"[a] t = {CONV} (h, v)", "e = Identity (h)")
    inner = model.graph.node[1].attribute[0].g
    inner.initializer.append(numpy_helper.from_array(normal(4, 4, 3, 3, seed=1), "v"))
    return Given(model, choosing(images(1, 3, 8, 8)))


@case("G11")
def branches_share_names() -> Given:
    """Both branches use the same names."""
    model = branch_model(
        f"[n] r = {CONV} (h, inner)  [n2] t = Relu (r)", f"[n] r = {CONV} (h, inner)  [n2] e = Relu (r)"
    )
    for seed, attribute in enumerate(model.graph.node[1].attribute, 1):
        attribute.g.initializer.append(numpy_helper.from_array(normal(4, 4, 3, 3, seed=seed) * seed**3, "inner"))
    return Given(model, choosing(images(1, 3, 8, 8)))


@case("G11")
def nested_branches() -> Given:
    """An If inside an If."""
    model = build(
        f"""(float[1, 3, 8, 8] x, bool flag) => (float[1, 4, 8, 8] y) {{
            [first] h = {CONV} (x, w)
            y = If (flag) <
                then_branch = yes () => (float[1, 4, 8, 8] t) {{
                    big = ReduceMax <keepdims = 0> (h)
                    many = Greater (big, limit)
                    [deep] t = If (many) <
                        then_branch = more () => (float[1, 4, 8, 8] tt) {{ [a] tt = {CONV} (h, v) }},
                        else_branch = less () => (float[1, 4, 8, 8] te) {{ [b] te = {CONV} (h, u) }}
                    >
                }},
                else_branch = no () => (float[1, 4, 8, 8] e) {{ [c] r = {CONV} (h, v)  e = Relu (r) }}
            >
        }}""",
        w=normal(4, 3, 3, 3),
        v=normal(4, 4, 3, 3, seed=1),
        u=normal(4, 4, 3, 3, seed=2),
        limit=f32(4.2),
    )
    return Given(model, choosing(images(1, 3, 8, 8, samples=24)))


@case("G11")
def conv_behind_an_if() -> Given:
    """A Conv reads what an If gives."""
    model = build(
        f"""(float[1, 3, 8, 8] x, bool flag) => (float[1, 4, 8, 8] y) {{
            [first] h = {CONV} (x, w)
            [choice] g = If (flag) <
                then_branch = yes () => (float[1, 4, 8, 8] t) {{ t = Relu (h) }},
                else_branch = no () => (float[1, 4, 8, 8] e) {{ e = Neg (h) }}
            >
            [last] y = {CONV} (g, v)
        }}""",
        w=normal(4, 3, 3, 3),
        v=normal(4, 4, 3, 3, seed=1),
    )
    return Given(model, choosing(images(1, 3, 8, 8)))


@case("G11")
def loop_body() -> Given:
    """A Conv in the body of a Loop."""
    model = loop_model(f"after = Identity (before)  [a] m = {CONV} (old, v)  new = Relu (m)")
    return Given(model, images(1, 3, 8, 8))


@case("G11")
def loop_with_scan_output() -> Given:
    """A Loop that collects an output."""
    model = loop_model(
        f"after = Identity (before)  [a] m = {CONV} (old, v)  new = Add (m, old)  seen = Identity (m)", scan=True
    )
    return Given(model, images(1, 3, 8, 8))


@case("G11")
def loop_that_changes_its_shape() -> Given:
    """A Loop whose tensor grows."""
    model = build(
        """(float[N, 8] x) => (float[M, 8] y) {
            [first] h = MatMul (x, w)
            [loop] y = Loop (three, go, h) <
                body = each (int64 i, bool before, float[P, 8] old) => (bool after, float[Q, 8] new) {
                    after = Identity (before)
                    [a] m = MatMul (old, v)
                    new = Concat <axis = 0> (old, m)
                }
            >
        }""",
        w=normal(8, 8),
        v=normal(8, 8, seed=1),
        three=np.array(3),
        go=np.array(True),
    )
    return Given(model, images(2, 8))


@case("G11")
def loop_inside_a_branch() -> Given:
    """A Loop inside an If."""
    model = branch_model(
        f"""[loop] t = Loop (two, go, h) <
            body = each (int64 i, bool before, float[1, 4, 8, 8] old) => (bool after, float[1, 4, 8, 8] new) {{
                after = Identity (before)
                [a] m = {CONV} (old, v)
                new = Relu (m)
            }}
        >""",
        f"[b] e = {CONV} (h, v)",
        v=normal(4, 4, 3, 3, seed=1, scale=0.12),
        two=np.array(2),
        go=np.array(True),
    )
    return Given(model, choosing(images(1, 3, 8, 8)))


@case("G11")
def function_called_twice() -> Given:
    """A function of the model called with two weights."""
    model = parser.parse_model(FUNCTION)
    for name, shape in (("w1", (4, 3, 3, 3)), ("w2", (4, 4, 3, 3))):
        model.graph.initializer.append(numpy_helper.from_array(normal(*shape), name))
    return Given(model, images(1, 3, 8, 8))


@case("G11")
def scan_body() -> Given:
    """MatMuls in the body of a Scan."""
    feeds = [{**sample, "start": np.zeros((2, 8), np.float32)} for sample in images(5, 2, 8)]
    return Given(scan_model(), feeds)
