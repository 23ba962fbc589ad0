"""Strides of convolutions of kernel 1, taken by a pool in front."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxq.graph.passes.strides_in_front import picks_elements, strides_in_front
from onnxq.graph.shapes import infer_shapes
from onnxq.graph.traverse import all_nodes
from onnxq.ort.session import Session
from tests.models import build, feeds_for, normal

STRIDED = "strides = [2, 2]"


def block(first: str = STRIDED, second: str = STRIDED, size: str = "7", more: str = "") -> onnx.ModelProto:
    """A tensor that two convolutions of kernel 1 read."""
    outputs = f"float[1, 4, A, B] y, float[1, 4, C, D] z{', float[1, 4, E, F] o' if more else ''}"
    return build(
        f"""(float[1, 4, {size}, {size}] x) => ({outputs}) {{
            r = Relu (x)
            [one] y = Conv <{first}> (r, w)
            [two] z = Conv <{second}> (r, v)
            {more}
        }}""",
        w=normal(4, 4, 1, 1),
        v=normal(4, 4, 1, 1, seed=1),
    )


def rewritten(source: onnx.ModelProto) -> ir.Model:
    model = ir.from_proto(source)
    infer_shapes(model)
    strides_in_front(model)
    return model


def test_convolutions_that_read_every_element_get_no_pool() -> None:
    model = rewritten(block("strides = [1, 1]", "strides = [1, 1]"))
    assert [node.op_type for node in model.graph] == ["Relu", "Conv", "Conv"]


@pytest.mark.parametrize("size", ["7", "N"])
@pytest.mark.parametrize(
    ("first", "second", "pools"),
    [
        (STRIDED, STRIDED, 1),
        ("strides = [1, 3]", "strides = [1, 3]", 1),
        (STRIDED, f'{STRIDED}, auto_pad = "SAME_UPPER"', 1),
        (STRIDED, f"{STRIDED}, pads = [1, 0, 2, 1]", 2),
        (f"{STRIDED}, pads = [1, 1, 1, 1]", f"{STRIDED}, pads = [1, 1, 1, 1]", 1),
    ],
)
def test_numbers_and_names_stay(first: str, second: str, pools: int, size: str) -> None:
    source = block(first, second, size)
    model = rewritten(source)
    convolutions = [node for node in model.graph if node.op_type == "Conv"]
    assert [node.name for node in convolutions] == ["one", "two"]
    assert not any(node.attributes.get_ints("strides", ()) for node in convolutions)
    assert sum(picks_elements(node) for node in model.graph) == pools
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    for feed in feeds_for(source, samples=2, N=7):
        want = Session(ir.from_proto(source), optimize=False).run(feed)
        got = Session(model, optimize=False).run(feed)
        for name, array in want.items():
            np.testing.assert_allclose(got[name], array, rtol=0, atol=1e-6)
    assert not strides_in_front(model), "once is enough"


@pytest.mark.parametrize(
    "source",
    [
        block(second="strides = [1, 2]"),
        block(second="group = 1"),
        block(more="o = Conv (r, w)"),
        build(
            "(float[1, 4, 7, 7] x) => (float[1, 4, 4, 4] y) { y = Conv <group = 2, strides = [2, 2]> (x, w) }",
            w=normal(4, 2, 1, 1),
        ),
        build(
            "(float[1, 4, 7, 7] x) => (float[1, 4, 3, 3] y) { y = Conv <strides = [2, 2]> (x, w) }",
            w=normal(4, 4, 3, 3),
        ),
    ],
)
def test_left_where_something_else_reads_or_the_kernel_is_another(source: onnx.ModelProto) -> None:
    assert not any(node.op_type == "MaxPool" for node in rewritten(source).graph)


def test_what_is_no_product_does_not_share_the_quantizer() -> None:
    model = rewritten(block(more="o = Sigmoid (r)"))
    assert [node.op_type for node in model.graph] == ["Relu", "MaxPool", "Conv", "Conv", "Sigmoid"]


def test_for_any_number_of_axes() -> None:
    for axes in (1, 3):
        shape, rest = ", ".join(["6"] * axes), (1,) * axes
        strides = ", ".join(["2"] * axes)
        source = build(
            f"(float[1, 4, {shape}] x) => (float[1, 4, {', '.join(['3'] * axes)}] y)"
            f" {{ y = Conv <strides = [{strides}]> (x, w) }}",
            w=normal(4, 4, *rest),
        )
        assert [node.op_type for node in rewritten(source).graph] == ["MaxPool", "Conv"]


def test_each_branch_has_a_pool_of_its_own() -> None:
    def branch(name: str) -> str:
        return f"{name} = b_{name} () => (float[1, 4, 4, 4] {name}) {{ {name} = Conv <{STRIDED}> (r, w) }}"

    source = build(
        f"""(float[1, 4, 7, 7] x, bool c) => (float[1, 4, 4, 4] y, float[1, 4, 4, 4] z) {{
            r = Relu (x)
            y = If (c) <{branch("then_branch")}, {branch("else_branch")}>
            z = Conv <{STRIDED}> (r, w)
        }}""",
        w=normal(4, 4, 1, 1),
    )
    model = rewritten(source)
    assert [node.op_type for node in all_nodes(model)].count("MaxPool") == 3
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    for chosen in (True, False):
        feed = {**feeds_for(source, samples=1)[0], "c": np.array(chosen)}
        want = Session(ir.from_proto(source), optimize=False).run(feed)
        got = Session(model, optimize=False).run(feed)
        for name, array in want.items():
            np.testing.assert_allclose(got[name], array, rtol=0, atol=1e-6)
