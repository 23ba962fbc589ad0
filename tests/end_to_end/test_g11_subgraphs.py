"""Group 11: bodies of If, Loop and Scan, and functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from tests.contract import Outcome, infer, quantize_checked
from tests.models import build, f32, feeds_for, images, normal

WEIGHT = normal(8, 8)


def branches(then: str, other: str, **constants: Any) -> onnx.ModelProto:
    return build(
        f"""(float[4, 8] x, bool cond) => (float[4, 8] y) {{
            h = Relu (x)
            [choice] y = If (cond) <
                then_branch = then_graph () => (float[4, 8] t) {{ {then} }},
                else_branch = else_graph () => (float[4, 8] e) {{ {other} }}
            >
        }}""",
        **constants,
    )


def both_ways(samples: int = 6) -> list[dict[str, Any]]:
    return [{**feed, "cond": np.array(i % 2 == 0)} for i, feed in enumerate(images(4, 8, samples=samples))]


def inner(result: Outcome, op: str) -> list[onnx.NodeProto]:
    found = []
    for node in result.proto.graph.node:
        for attribute in node.attribute:
            found += [n for n in attribute.g.node if n.op_type == op]
    return found


def test_if_outer_scope_weight() -> None:
    model = branches("[m1] t = MatMul (h, w)", "n = Neg (h) [m2] e = MatMul (n, w)", w=WEIGHT)
    result = quantize_checked(model, both_ways())
    plan = result.quantized.plan
    for name in ("m1", "m2"):
        assert name in plan.quantized or result.reasons[name]
    if {"m1", "m2"} <= plan.quantized.keys():
        floats = [t for t in result.proto.graph.initializer if t.data_type == TensorProto.FLOAT and len(t.dims) == 2]
        assert not floats, "the weight must not be stored twice"
        assert sum(t.data_type == TensorProto.INT8 and len(t.dims) == 2 for t in result.proto.graph.initializer) == 1


def test_a_branch_that_was_never_taken() -> None:
    model = branches("[m1] t = MatMul (h, w)", "[m2] e = MatMul (h, v)", w=WEIGHT, v=normal(8, 8, seed=1))
    feeds = [{**feed, "cond": np.array(True)} for feed in images(4, 8)]
    result = quantize_checked(model, feeds)
    other = [{**feed, "cond": np.array(False)} for feed in feeds]
    wanted, got = (infer(m, other, optimize=True)["y"][0] for m in (model, result.proto))
    assert np.abs(wanted - got).max() < 0.15 * np.abs(wanted).max()


def test_weight_only_inside_one_branch_other_passes_through() -> None:
    model = branches("[m1] t = MatMul (h, w_inner)", "e = Identity (h)")
    body = next(a.g for n in model.graph.node for a in n.attribute if a.name == "then_branch")
    body.initializer.append(numpy_helper.from_array(WEIGHT, "w_inner"))
    result = quantize_checked(model, both_ways())
    node = next(n for n in result.proto.graph.node if n.op_type == "If")
    types = {
        a.name: [o.type.tensor_type.elem_type for o in a.g.output] for a in node.attribute if a.name.endswith("branch")
    }
    assert types["then_branch"] == types["else_branch"] == [TensorProto.FLOAT]
    assert "m1" in result.quantized.plan.quantized or result.reasons["m1"]


def test_subgraph_tensor_shadows_an_outer_name() -> None:
    """Two branches both call a tensor ``a``, as does the graph after them: scopes are kept apart."""
    model = branches(
        "a = MatMul (h, w)  t = Relu (a)",
        "a = MatMul (h, v)  b = MatMul (a, w)  e = Neg (b)",
        w=WEIGHT,
        v=normal(8, 8, seed=1, scale=20),
    )
    model.graph.node.append(helper.make_node("MatMul", ["y", "w"], ["a"], name="last"))
    model.graph.output.append(helper.make_tensor_value_info("a", TensorProto.FLOAT, [4, 8]))
    result = quantize_checked(model, both_ways())
    assert [output.name for output in result.proto.graph.output] == ["y", "a"]


def test_nested_if() -> None:
    model = branches(
        """t = If (cond) <
            then_branch = tt () => (float[4, 8] p) { [deep] p = MatMul (h, w) },
            else_branch = te () => (float[4, 8] q) { q = Neg (h) }
        >""",
        "e = Identity (h)",
        w=WEIGHT,
    )
    quantize_checked(model, both_ways())


def loop() -> onnx.ModelProto:
    return build(
        """(float[4, 8] x, int64 trips) => (float[4, 8] y, float[K, 4, 8] all) {
            y, all = Loop (trips, keep, x) <
                body = step (int64 i, bool go, float[4, 8] state) => (bool on, float[4, 8] next, float[4, 8] seen) {
                    on = Identity (go)
                    [mm] m = MatMul (state, w)
                    next = Tanh (m)
                    seen = Identity (next)
                }
            >
        }""",
        keep=np.array(True),
        w=WEIGHT,
    )


def test_loop() -> None:
    feeds = [{**feed, "trips": np.array(3 + i % 2)} for i, feed in enumerate(images(4, 8))]
    result = quantize_checked(loop(), feeds, least=None)
    assert "mm" in result.quantized.plan.quantized or result.reasons["mm"]
    assert result.worst > 15


def test_loop_that_runs_no_time() -> None:
    feeds = [{**feed, "trips": np.array(0)} for feed in images(4, 8)]
    result = quantize_checked(loop(), feeds, least=None)
    assert "mm" in result.reasons


def test_scan() -> None:
    model = build(
        """(float[5, 8] x) => (float[8] last, float[5, 8] y) {
            last, y = Scan (zero, x) <
                num_scan_inputs = 1,
                body = step (float[8] state, float[8] row) => (float[8] next, float[8] out) {
                    s = Add (state, row)
                    [mm] m = MatMul (s, w)
                    next = Tanh (m)
                    out = Identity (next)
                }
            >
        }""",
        zero=np.zeros(8, np.float32),
        w=WEIGHT,
    )
    result = quantize_checked(model, images(5, 8), least=None)
    assert "mm" in result.quantized.plan.quantized or result.reasons["mm"]
    assert result.worst > 15


def test_a_branch_reads_a_quantized_tensor_of_the_outer_graph() -> None:
    model = build(
        """(float[1, 3, 8, 8] x, bool cond) => (float[1, 4, 4, 4] y, float[1, 4, 4, 4] z) {
            c = Conv (x, w)
            r = Relu (c)
            y = Conv (r, v)
            z = If (cond) <
                then_branch = a () => (float[1, 4, 4, 4] t) { t = Conv (r, v) },
                else_branch = b () => (float[1, 4, 4, 4] e) { e = MaxPool <kernel_shape = [3, 3]> (r) }
            >
        }""",
        w=normal(4, 3, 3, 3),
        v=normal(4, 4, 3, 3, seed=1),
    )
    feeds = [{**feed, "cond": np.array(i % 2 == 0)} for i, feed in enumerate(images(1, 3, 8, 8))]
    quantize_checked(model, feeds)


def test_model_local_functions_are_inlined() -> None:
    model = parser.parse_model(
        """
        <ir_version: 8, opset_import: ["" : 17, "my.ops" : 1]>
        g (float[4, 8] x, float[8, 8] w) => (float[4, 8] y) {
            [a] h = my.ops.Layer <slope = 0.2> (x, w)
            [b] y = my.ops.Layer <slope = 0.1> (h, w)
        }
        <domain: "my.ops", opset_import: ["" : 17]>
        Layer <slope> (x, w) => (y) {
            m = MatMul (x, w)
            y = LeakyRelu <alpha: float = @slope> (m)
        }
        """
    )
    model.graph.input.pop()
    model.graph.initializer.append(numpy_helper.from_array(WEIGHT, "w"))
    result = quantize_checked(model, feeds_for(model))
    assert list(result.quantized.plan.quantized.values()).count("MatMul") == 2
    assert not any(n.domain == "my.ops" for n in result.proto.graph.node)


@pytest.mark.parametrize("value", [True, False])
def test_condition_that_is_constant(value: bool) -> None:
    model = build(
        """(float[4, 8] x) => (float[4, 8] y) {
            y = If (cond) <
                then_branch = a () => (float[4, 8] t) { t = MatMul (x, w) },
                else_branch = b () => (float[4, 8] e) { e = MatMul (x, v) }
            >
        }""",
        cond=np.array(value),
        w=WEIGHT,
        v=f32(np.eye(8)),
    )
    quantize_checked(model, images(4, 8))
