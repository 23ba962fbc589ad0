"""Group 11: branches, loops, scans and model-local functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper, parser

from onnxq import Options
from tests.contract import infer, quantize_checked, sqnr
from tests.models import build, f32, images, normal

Feeds = list[dict[str, NDArray[np.generic]]]


def choosing(feeds: list[dict[str, NDArray[np.float32]]], *, always: bool | None = None) -> Feeds:
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


def inner_graphs(model: onnx.ModelProto) -> list[onnx.GraphProto]:
    found, stack = [], [model.graph]
    while stack:
        for node in stack.pop().node:
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    found.append(attribute.g)
                    stack.append(attribute.g)
    return found


CONV = "Conv <pads = [1, 1, 1, 1]>"


def test_if_outer_scope_weight() -> None:
    model = branch_model(f"[a] t = {CONV} (h, v)", f"[b] e = {CONV} (h, v)", v=normal(4, 4, 3, 3, seed=1))
    result = quantize_checked(model, choosing(images(1, 3, 8, 8)))
    assert result.quantized.plan.quantized.keys() == {"first", "a", "b"}
    stored = [
        tensor
        for graph in (result.proto.graph, *inner_graphs(result.proto))
        for tensor in graph.initializer
        if tuple(tensor.dims) == (4, 4, 3, 3)
    ]
    assert [tensor.data_type for tensor in stored] == [TensorProto.INT8], "the weight is stored once, as integers"


def test_if_with_one_branch_excluded() -> None:
    model = branch_model(f"[a] t = {CONV} (h, v)", f"[b] e = {CONV} (h, v)", v=normal(4, 4, 3, 3, seed=1))
    result = quantize_checked(model, choosing(images(1, 3, 8, 8)), Options(placement="all", exclude=("a",)), least=20)
    assert result.reasons["a"] == "excluded by 'a'"
    assert {"first", "b"} <= result.quantized.plan.quantized.keys()


@pytest.mark.parametrize("always", [True, False])
def test_branch_that_the_data_never_takes(always: bool) -> None:
    model = branch_model(f"[a] m = {CONV} (h, v)  t = Relu (m)", f"[b] e = {CONV} (h, u)",
                         v=normal(4, 4, 3, 3, seed=1), u=normal(4, 4, 3, 3, seed=2))  # fmt: skip
    feeds = choosing(images(1, 3, 8, 8), always=always)
    result = quantize_checked(model, feeds)
    taken, never = ("a", "b") if always else ("b", "a")
    assert taken in result.quantized.plan.quantized
    known = never in result.quantized.plan.quantized
    assert known or result.reasons[never].strip(), "quantized, or said why not"
    swapped = [{**sample, "flag": np.asarray(not sample["flag"])} for sample in feeds]
    expected, got = (infer(m, swapped, optimize=True)["y"] for m in (model, result.proto))
    assert sqnr(expected, got) > 15, "the branch that was not calibrated must still compute its numbers"


def test_weight_only_inside_one_branch() -> None:
    """The other branch passes its tensor through: both branches give float."""
    model = branch_model(f"[a] t = {CONV} (h, v)", "e = Identity (h)")
    inner = model.graph.node[1].attribute[0].g
    inner.initializer.append(numpy_helper.from_array(normal(4, 4, 3, 3, seed=1), "v"))
    result = quantize_checked(model, choosing(images(1, 3, 8, 8)))
    assert "a" in result.quantized.plan.quantized
    types = [graph.output[0].type.tensor_type.elem_type for graph in inner_graphs(result.proto)]
    assert types == [TensorProto.FLOAT] * 2


def test_weight_as_constant_node_inside_one_branch() -> None:
    model = branch_model(f"[a] t = {CONV} (h, v)", "e = Identity (h)")
    inner = model.graph.node[1].attribute[0].g
    inner.node.insert(
        0, helper.make_node("Constant", [], ["v"], value=numpy_helper.from_array(normal(4, 4, 3, 3, seed=1)))
    )
    result = quantize_checked(model, choosing(images(1, 3, 8, 8)))
    assert "a" in result.quantized.plan.quantized


def test_branch_that_gives_an_outer_constant() -> None:
    model = branch_model(f"[a] t = {CONV} (h, v)", "e = Identity (zeros)",
                         v=normal(4, 4, 3, 3, seed=1), zeros=np.zeros((1, 4, 8, 8), np.float32))  # fmt: skip
    result = quantize_checked(model, choosing(images(1, 3, 8, 8)))
    assert "a" in result.quantized.plan.quantized


def test_subgraph_tensor_shadows_an_outer_name() -> None:
    """Both branches call their tensors, weights and nodes what others do: sibling scopes share names."""
    model = branch_model(
        f"[n] r = {CONV} (h, inner)  [n2] t = Relu (r)", f"[n] r = {CONV} (h, inner)  [n2] e = Relu (r)"
    )
    for seed, attribute in enumerate(model.graph.node[1].attribute, 1):
        attribute.g.initializer.append(numpy_helper.from_array(normal(4, 4, 3, 3, seed=seed) * seed**3, "inner"))
    result = quantize_checked(model, choosing(images(1, 3, 8, 8)))
    graphs = (result.proto.graph, *inner_graphs(result.proto))
    names = [name for graph in graphs for node in graph.node for name in node.output if name]
    names += [tensor.name for graph in graphs for tensor in graph.initializer]
    assert len(names) == len(set(names))
    nodes = [node.name for graph in graphs for node in graph.node]
    assert len(nodes) == len(set(nodes))
    assert len(result.quantized.plan.quantized) == 3


def test_inner_weight_shadows_an_outer_weight() -> None:
    """An initializer of a branch has the name of one outside, of other numbers.

    onnxruntime takes the inner one with graph optimizations and the outer one without, so the judge is the same model
    with the inner weight renamed.
    """
    own = branch_model(f"[a] t = {CONV} (h, own)", f"[b] e = {CONV} (h, v)", v=normal(4, 4, 3, 3, seed=1))
    numbers = normal(4, 4, 3, 3, seed=2) * 10
    own.graph.node[1].attribute[0].g.initializer.append(numpy_helper.from_array(numbers, "own"))
    model = onnx.ModelProto()
    model.CopyFrom(own)
    inner = model.graph.node[1].attribute[0].g
    inner.initializer[0].name = inner.node[0].input[1] = "v"
    feeds = choosing(images(1, 3, 8, 8))
    result = quantize_checked(model, feeds, least=None)
    assert {"a", "b"} <= result.quantized.plan.quantized.keys()
    for flag in (True, False):
        some = [sample for sample in feeds if bool(sample["flag"]) is flag]
        expected, got = (infer(m, some, optimize=False)["y"] for m in (own, result.proto))
        assert sqnr(expected, got) > 20, "each branch computes with its own weight"


def test_nested_branches() -> None:
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
    result = quantize_checked(model, choosing(images(1, 3, 8, 8, samples=24)))
    assert {"first", "a", "b", "c"} <= result.quantized.plan.quantized.keys() | result.reasons.keys()
    assert {"first", "c"} <= result.quantized.plan.quantized.keys()


def test_branch_output_behind_the_if_is_quantized() -> None:
    """The If's result is read by integers: the quantizer stands behind the If."""
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
    result = quantize_checked(model, choosing(images(1, 3, 8, 8)))
    assert {"first", "last"} <= result.quantized.plan.quantized.keys()


def test_if_with_a_constant_condition() -> None:
    model = branch_model(f"[a] t = {CONV} (h, v)", f"[b] e = {CONV} (h, v)", v=normal(4, 4, 3, 3, seed=1))
    del model.graph.input[1]
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "flag"))
    result = quantize_checked(model, images(1, 3, 8, 8))
    assert "first" in result.quantized.plan.quantized


@pytest.mark.parametrize("weight_bits", [4, 8, 16])
def test_branches_of_every_weight_width(weight_bits: int) -> None:
    model = branch_model(f"[a] t = {CONV} (h, v)", f"[b] e = {CONV} (h, v)", v=normal(4, 4, 3, 3, seed=1))
    options = Options(placement="all", weight_bits=weight_bits)
    quantize_checked(model, choosing(images(1, 3, 8, 8)), options, least=8 if weight_bits == 4 else 20)


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


def test_loop_body() -> None:
    model = loop_model(f"after = Identity (before)  [a] m = {CONV} (old, v)  new = Relu (m)")
    result = quantize_checked(model, images(1, 3, 8, 8))
    assert "first" in result.quantized.plan.quantized
    assert "a" in result.quantized.plan.quantized


def test_loop_body_with_scan_output() -> None:
    model = loop_model(
        f"after = Identity (before)  [a] m = {CONV} (old, v)  new = Add (m, old)  seen = Identity (m)", scan=True
    )
    result = quantize_checked(model, images(1, 3, 8, 8))
    assert "a" in result.quantized.plan.quantized


def test_loop_that_changes_its_shape() -> None:
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
    result = quantize_checked(model, images(2, 8))
    assert {"first", "a"} <= result.quantized.plan.quantized.keys()


def test_loop_that_never_runs() -> None:
    model = loop_model(f"after = Identity (before)  [a] m = {CONV} (old, v)  new = Relu (m)")
    three = next(t for t in model.graph.initializer if t.name == "three")
    three.CopyFrom(numpy_helper.from_array(np.array(0), "three"))
    result = quantize_checked(model, images(1, 3, 8, 8))
    assert result.reasons["a"].strip(), "no numbers were seen of it"


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


def test_scan_body() -> None:
    model = scan_model()
    feeds: Feeds = [{**sample, "start": np.zeros((2, 8), np.float32)} for sample in images(5, 2, 8)]
    result = quantize_checked(model, feeds)
    assert {"outer", "b"} <= result.quantized.plan.quantized.keys()
    known = result.quantized.plan.quantized.keys() | result.reasons.keys()
    assert "a" in known


def test_loop_inside_a_branch() -> None:
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
    result = quantize_checked(model, choosing(images(1, 3, 8, 8)))
    assert {"first", "a", "b"} <= result.quantized.plan.quantized.keys()


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


def test_function_called_twice() -> None:
    model = parser.parse_model(FUNCTION)
    for name, shape in (("w1", (4, 3, 3, 3)), ("w2", (4, 4, 3, 3))):
        model.graph.initializer.append(numpy_helper.from_array(normal(*shape), name))
    result = quantize_checked(model, images(1, 3, 8, 8))
    assert list(result.quantized.plan.quantized.values()).count("Conv") == 2
    assert "Block" not in result.ops


def test_function_called_in_a_branch() -> None:
    model = branch_model("[a] t = local.Block (h, v)", f"[b] e = {CONV} (h, v)", v=normal(4, 4, 3, 3, seed=1))
    donor = parser.parse_model(FUNCTION)
    model.functions.extend(donor.functions)
    model.opset_import.append(helper.make_opsetid("local", 1))
    result = quantize_checked(model, choosing(images(1, 3, 8, 8)))
    assert list(result.quantized.plan.quantized.values()).count("Conv") == 3


def test_if_under_the_default_placement() -> None:
    model = branch_model(f"[a] t = {CONV} (h, v)", "e = Identity (h)", v=normal(4, 4, 3, 3, seed=1))
    quantize_checked(model, choosing(images(1, 3, 8, 8)), Options(), least=None)
