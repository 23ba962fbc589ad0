from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as state

from onnxq.graph.files.load import load
from onnxq.graph.files.onnx_checker import check
from onnxq.graph.files.save import to_proto
from onnxq.graph.passes.upcast import GENERIC, upcast
from onnxq.graph.traverse import all_graphs
from onnxq.options import Options
from onnxq.prepare import Prepared
from tests.graph.helpers import Feeds, apply, build, ops, random, run, signature
from tests.installed import needs
from tests.models import i64

HALF = np.float16


def dtypes(model: ir.Model) -> set[ir.DataType]:
    ends = {*model.graph.inputs, *model.graph.outputs}
    values = (
        v for g in all_graphs(model) for v in (*g.inputs, *g.initializers.values(), *(o for n in g for o in n.outputs))
    )
    return {v.dtype for v in values if v not in ends and v.dtype is not None}


def test_half_model_computes_in_float32() -> None:
    text = """g (float16[2,4] x, int64[2] i) => (float16[2,3] y, int64[2] j) {
        m = MatMul(x, w) \n a = Add(m, b) \n y = Relu(a) \n j = Neg(i) }"""
    proto = build(text, w=random(4, 3).astype(HALF), b=random(3, seed=1).astype(HALF))
    feeds: Feeds = {"x": random(2, 4, seed=2).astype(HALF), "i": i64([1, 2])}
    model, notes = apply(upcast, proto, feeds, tolerance=2e-3)
    assert ops(model) == ["Cast", "MatMul", "Add", "Relu", "Neg", "Cast"]
    assert dtypes(model) == {ir.DataType.FLOAT}
    assert notes[0].message == "computes in float32 in place of FLOAT16"


def test_bfloat16() -> None:
    proto = build("g (bfloat16[4] x) => (bfloat16[4] y) { a = Mul(x, x) \n y = Neg(a) }")
    model = load(proto)
    upcast(model)
    check(model)
    assert ops(model) == ["Cast", "Mul", "Neg", "Cast"]
    assert [v.dtype for v in (*model.graph.inputs, *model.graph.outputs)] == [ir.DataType.BFLOAT16] * 2


def test_types_in_attributes_and_branches() -> None:
    text = """g (float[4] x, bool c) => (float[4] y) {
        h = Cast<to = 10>(x)
        s = Shape(x)
        k = ConstantOfShape<value = float16[1] {2}>(s)
        z = If (c) <then_branch = a () => (float16[4] p) { l = Constant<value = float16[1] {3}>() \n p = Mul(h, l) },
                    else_branch = b () => (float16[4] q) { q = Mul(h, w) }>
        o = Add(z, k)
        y = Cast<to = 1>(o) }"""
    proto = build(text, w=np.ones(1, HALF))
    for branch in proto.graph.node[3].attribute:
        for node in branch.g.node:
            for attribute in node.attribute:
                if attribute.name == "value":
                    attribute.t.CopyFrom(onnx.numpy_helper.from_array(np.array([3], HALF)))
    proto.graph.node[2].attribute[0].t.CopyFrom(onnx.numpy_helper.from_array(np.array([2], HALF)))
    model, _ = apply(upcast, proto, {"x": random(4), "c": np.array(True)}, tolerance=2e-3)
    assert ir.DataType.FLOAT16 not in dtypes(model)


def test_output_that_others_read_and_input_that_is_an_output() -> None:
    proto = build("g (float16[4] x) => (float16[4] a, float16[4] y) { a = Neg(x) \n y = Relu(a) }")
    info = onnx.ValueInfoProto()
    info.CopyFrom(proto.graph.input[0])
    proto.graph.output.append(info)
    original = signature(proto)
    model = load(proto)
    upcast(model)
    check(model)
    assert signature(to_proto(model)) == original
    x = random(4).astype(HALF)
    got = run(to_proto(model), {"x": x})
    np.testing.assert_array_equal(got[0], -x)
    np.testing.assert_array_equal(got[1], np.maximum(-x, 0))
    np.testing.assert_array_equal(got[2], x)


def test_float32_model_is_untouched() -> None:
    model, notes = apply(upcast, build("g (float[4] x) => (float[4] y) { y = Relu(x) }"), {"x": random(4)})
    assert ops(model) == ["Relu"]
    assert notes == []


def test_operator_of_another_domain_refuses() -> None:
    proto = build("g (float16[4] x) => (float16[4] y) { a = Thing(x) \n y = Neg(a) }")
    proto.graph.node[0].domain, proto.graph.node[0].name = "mine", "n1"
    proto.opset_import.add(domain="mine", version=1)
    model = load(proto)
    notes = upcast(model)
    assert notes[-1].node == "n1"
    assert notes[-1].message.startswith("refused: mine::Thing touches 'x'")
    assert [n.op_type for n in model.graph] == ["Thing", "Neg"]
    assert [v.dtype for v in model.graph.inputs] == [ir.DataType.FLOAT16]
    assert Prepared(proto, Options()).warnings == [
        "'n1': mine::Thing touches 'x', of a type to convert: the model still computes in half precision, and those "
        "parts are not quantized. Give it in float32"
    ]


def test_sequence_input_refuses() -> None:
    proto = build("g (seq(float16[4]) s) => (float16[4] y) { y = SequenceAt(s, i) }", i=np.int64(0))
    model = load(proto)
    assert "inside a sequence" in upcast(model)[-1].message


def test_constant_that_is_an_output() -> None:
    proto = build("g (float16[4] x) => (float16[4] y) { y = Add(x, w) }", w=random(4).astype(HALF))
    proto.graph.output.append(onnx.helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT16, [4]))
    model, _ = apply(upcast, proto, {"x": random(4, seed=1).astype(HALF)}, tolerance=2e-3)
    assert model.graph.outputs[1].dtype == ir.DataType.FLOAT16


def test_operators_of_onnxruntime_become_float32() -> None:
    """What its optimizer makes of a float16 model, types that onnx cannot infer among it."""
    text = """g (float16[2,3,8] x) => (float16[2,3,4] y) {
        n = com.microsoft.SkipLayerNormalization <epsilon: float = 0.001> (x, x, gamma, beta)
        a = com.microsoft.BiasGelu (n, bias)
        f = com.microsoft.FusedMatMul <alpha: float = 0.5> (a, w)
        y = com.microsoft.QuickGelu (f) }"""
    arrays = {"gamma": random(8), "beta": random(8, seed=1), "bias": random(8, seed=2), "w": random(8, 4, seed=3)}
    proto = build(text, **{name: array.astype(HALF) for name, array in arrays.items()})
    proto.opset_import.add(domain="com.microsoft", version=1)
    model, notes = apply(upcast, proto, {"x": random(2, 3, 8, seed=4).astype(HALF)}, tolerance=1e-2)
    assert ops(model) == ["Cast", *(node.op_type for node in proto.graph.node), "Cast"]
    assert dtypes(model) == {ir.DataType.FLOAT}
    assert "float32 in place of" in notes[-1].message


@needs("onnxruntime", "1.31")
@pytest.mark.parametrize("op", sorted(GENERIC))
def test_onnxruntime_has_float32_wherever_it_has_half(op: str) -> None:
    half, full = "tensor(float16)", "tensor(float)"
    (schema,) = [s for s in state.get_all_operator_schema() if (s.domain, s.name) == ("com.microsoft", op)]
    allowed = {t.type_param_str: list(t.allowed_type_strs) for t in schema.type_constraints}
    types = {p.typeStr for p in (*schema.inputs, *schema.outputs)}
    assert half not in types
    variables = {name for name in types & allowed.keys() if half in allowed[name]}
    assert variables
    assert all(full in allowed[name] for name in variables)
    kernels = [
        k.type_constraints for k in state.get_all_opkernel_def() if (k.domain, k.op_name) == ("com.microsoft", op)
    ]
    assert any(all(full in kernel.get(name, [full]) for name in variables) for kernel in kernels)
