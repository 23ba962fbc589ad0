"""Group 11: branches, loops, scans and model-local functions."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper, parser

from onnxq import Options
from tests.cases import g11
from tests.contract import infer, quantize_checked, sqnr
from tests.models import images, normal

Feeds = list[dict[str, NDArray[np.generic]]]


def inner_graphs(model: onnx.ModelProto) -> list[onnx.GraphProto]:
    found, stack = [], [model.graph]
    while stack:
        for node in stack.pop().node:
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    found.append(attribute.g)
                    stack.append(attribute.g)
    return found


def test_if_outer_scope_weight() -> None:
    result = quantize_checked(*g11.if_outer_scope_weight())
    assert result.quantized.plan.quantized.keys() == {"first", "a", "b"}
    stored = [
        tensor
        for graph in (result.proto.graph, *inner_graphs(result.proto))
        for tensor in graph.initializer
        if tuple(tensor.dims) == (4, 4, 3, 3)
    ]
    assert [tensor.data_type for tensor in stored] == [TensorProto.INT8], "the weight is stored once, as integers"


def test_if_with_one_branch_excluded() -> None:
    model = g11.branch_model(f"[a] t = {g11.CONV} (h, v)", f"[b] e = {g11.CONV} (h, v)", v=normal(4, 4, 3, 3, seed=1))
    result = quantize_checked(
        model, g11.choosing(images(1, 3, 8, 8)), Options(placement="all", exclude=("a",)), least=20
    )
    assert result.reasons["a"] == "excluded by 'a'"
    assert {"first", "b"} <= result.quantized.plan.quantized.keys()


@pytest.mark.parametrize("always", [True, False])
def test_branch_that_the_data_never_takes(always: bool) -> None:
    model = g11.branch_model(f"[a] m = {g11.CONV} (h, v)  t = Relu (m)", f"[b] e = {g11.CONV} (h, u)",
                         v=normal(4, 4, 3, 3, seed=1), u=normal(4, 4, 3, 3, seed=2))  # fmt: skip
    feeds = g11.choosing(images(1, 3, 8, 8), always=always)
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
    result = quantize_checked(*g11.weight_only_inside_one_branch())
    assert "a" in result.quantized.plan.quantized
    types = [graph.output[0].type.tensor_type.elem_type for graph in inner_graphs(result.proto)]
    assert types == [TensorProto.FLOAT] * 2


def test_weight_as_constant_node_inside_one_branch() -> None:
    model = g11.branch_model(f"[a] t = {g11.CONV} (h, v)", "e = Identity (h)")
    inner = model.graph.node[1].attribute[0].g
    inner.node.insert(
        0, helper.make_node("Constant", [], ["v"], value=numpy_helper.from_array(normal(4, 4, 3, 3, seed=1)))
    )
    result = quantize_checked(model, g11.choosing(images(1, 3, 8, 8)))
    assert "a" in result.quantized.plan.quantized


def test_branch_that_gives_an_outer_constant() -> None:
    model = g11.branch_model(f"[a] t = {g11.CONV} (h, v)", "e = Identity (zeros)",
                         v=normal(4, 4, 3, 3, seed=1), zeros=np.zeros((1, 4, 8, 8), np.float32))  # fmt: skip
    result = quantize_checked(model, g11.choosing(images(1, 3, 8, 8)))
    assert "a" in result.quantized.plan.quantized


def test_subgraph_tensor_shadows_an_outer_name() -> None:
    """Both branches call their tensors, weights and nodes what others do: sibling scopes share names."""
    result = quantize_checked(*g11.branches_share_names())
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
    own = g11.branch_model(f"[a] t = {g11.CONV} (h, own)", f"[b] e = {g11.CONV} (h, v)", v=normal(4, 4, 3, 3, seed=1))
    numbers = normal(4, 4, 3, 3, seed=2) * 10
    own.graph.node[1].attribute[0].g.initializer.append(numpy_helper.from_array(numbers, "own"))
    model = onnx.ModelProto()
    model.CopyFrom(own)
    inner = model.graph.node[1].attribute[0].g
    inner.initializer[0].name = inner.node[0].input[1] = "v"
    feeds = g11.choosing(images(1, 3, 8, 8))
    result = quantize_checked(model, feeds, least=None)
    assert {"a", "b"} <= result.quantized.plan.quantized.keys()
    for flag in (True, False):
        some = [sample for sample in feeds if bool(sample["flag"]) is flag]
        expected, got = (infer(m, some, optimize=False)["y"] for m in (own, result.proto))
        assert sqnr(expected, got) > 20, "each branch computes with its own weight"


def test_nested_branches() -> None:
    result = quantize_checked(*g11.nested_branches())
    assert {"first", "a", "b", "c"} <= result.quantized.plan.quantized.keys() | result.reasons.keys()
    assert {"first", "c"} <= result.quantized.plan.quantized.keys()


def test_branch_output_behind_the_if_is_quantized() -> None:
    """The If's result is read by integers: the quantizer stands behind the If."""
    result = quantize_checked(*g11.conv_behind_an_if())
    assert {"first", "last"} <= result.quantized.plan.quantized.keys()


def test_if_with_a_constant_condition() -> None:
    model = g11.branch_model(f"[a] t = {g11.CONV} (h, v)", f"[b] e = {g11.CONV} (h, v)", v=normal(4, 4, 3, 3, seed=1))
    del model.graph.input[1]
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "flag"))
    result = quantize_checked(model, images(1, 3, 8, 8))
    assert "first" in result.quantized.plan.quantized


@pytest.mark.parametrize("weight_bits", [4, 8, 16])
def test_branches_of_every_weight_width(weight_bits: int) -> None:
    model = g11.branch_model(f"[a] t = {g11.CONV} (h, v)", f"[b] e = {g11.CONV} (h, v)", v=normal(4, 4, 3, 3, seed=1))
    options = Options(placement="all", weight_bits=weight_bits)
    quantize_checked(model, g11.choosing(images(1, 3, 8, 8)), options, least=8 if weight_bits == 4 else 20)


def test_loop_body() -> None:
    result = quantize_checked(*g11.loop_body())
    assert "first" in result.quantized.plan.quantized
    assert "a" in result.quantized.plan.quantized


def test_loop_body_with_scan_output() -> None:
    result = quantize_checked(*g11.loop_with_scan_output())
    assert "a" in result.quantized.plan.quantized


def test_loop_that_changes_its_shape() -> None:
    result = quantize_checked(*g11.loop_that_changes_its_shape())
    assert {"first", "a"} <= result.quantized.plan.quantized.keys()


def test_loop_that_never_runs() -> None:
    model = g11.loop_model(f"after = Identity (before)  [a] m = {g11.CONV} (old, v)  new = Relu (m)")
    three = next(t for t in model.graph.initializer if t.name == "three")
    three.CopyFrom(numpy_helper.from_array(np.array(0), "three"))
    result = quantize_checked(model, images(1, 3, 8, 8))
    assert result.reasons["a"].strip(), "no numbers were seen of it"


def test_scan_body() -> None:
    result = quantize_checked(*g11.scan_body())
    assert {"outer", "b"} <= result.quantized.plan.quantized.keys()
    known = result.quantized.plan.quantized.keys() | result.reasons.keys()
    assert "a" in known


def test_loop_inside_a_branch() -> None:
    result = quantize_checked(*g11.loop_inside_a_branch())
    assert {"first", "a", "b"} <= result.quantized.plan.quantized.keys()


def test_function_called_twice() -> None:
    result = quantize_checked(*g11.function_called_twice())
    assert list(result.quantized.plan.quantized.values()).count("Conv") == 2
    assert "Block" not in result.ops


def test_function_called_in_a_branch() -> None:
    model = g11.branch_model("[a] t = local.Block (h, v)", f"[b] e = {g11.CONV} (h, v)", v=normal(4, 4, 3, 3, seed=1))
    donor = parser.parse_model(g11.FUNCTION)
    model.functions.extend(donor.functions)
    model.opset_import.append(helper.make_opsetid("local", 1))
    result = quantize_checked(model, g11.choosing(images(1, 3, 8, 8)))
    assert list(result.quantized.plan.quantized.values()).count("Conv") == 3


def test_if_under_the_default_placement() -> None:
    model = g11.branch_model(f"[a] t = {g11.CONV} (h, v)", "e = Identity (h)", v=normal(4, 4, 3, 3, seed=1))
    quantize_checked(model, g11.choosing(images(1, 3, 8, 8)), Options(), least=None)


def test_a_list_that_a_loop_fills_is_not_empty_inside() -> None:
    """torch's exporter declares what the Loop carries as it begins: of no rows. onnxruntime runs it all the same."""
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        list (float[1, 8] x, int64 times) => (float[rows, 8] y) {
            none = Constant <value = float[0, 8] {}> ()
            go = Constant <value = bool {1}> ()
            h = MatMul (x, w)
            y = Loop <body = body (int64 step, bool on, float[0, 8] rows_so_far) => (bool on_, float[n, 8] more) {
                on_ = Identity (on)
                r = Relu (h)
                more = Concat <axis = 0> (rows_so_far, r)
            }> (times, go, none)
        }"""
    )
    model.graph.initializer.append(numpy_helper.from_array(normal(8, 8, scale=1.0), "w"))
    feeds = [{"x": feed["x"], "times": np.array(3, np.int64)} for feed in images(1, 8)]
    result = quantize_checked(model, feeds)
    assert result.quantized.plan.quantized, "what stands before the Loop at least"
