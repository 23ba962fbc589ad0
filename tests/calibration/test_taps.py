from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from onnxq.calibration.taps import tap
from onnxq.errors import ModelError
from onnxq.ort.session import Session

TOP = """
    <ir_version: 8, opset_import: ["" : 17]>
    agraph (float[N, 3] x, float[3] b) => (float[N, 3] y, float[N, 3] x2) {
        a = Add(x, b)
        shape = Shape(a)
        y = Relu(a)
        x2 = Identity(x)
    }"""

NESTED_IF = """
    <ir_version: 8, opset_import: ["" : 17]>
    agraph (float[N] x, bool c, bool d) => (float[N] y)
    <float two = {2.0}>
    {
        y = If (c) <
            then_branch = outer_then () => (float[N] o1) <float[N] t1> { t1 = Mul(x, two)  o1 = Neg(t1) },
            else_branch = outer_else () => (float[N] o2) <float[N] t2, float[N] u2> {
                t2 = Add(x, two)
                u2 = If (d) <
                    then_branch = inner_then () => (float[N] o3) <float[N] t3> { t3 = Exp(t2)  o3 = Neg(t3) },
                    else_branch = inner_else () => (float[N] o4) <float[N] t4> { t4 = Abs(t2)  o4 = Neg(t4) }
                >
                o2 = Relu(u2)
            }
        >
    }"""

LOOP = """
    <ir_version: 8, opset_import: ["" : 17]>
    agraph (float[2] x, int64 n) => (float[2] y, float[K, 2] z)
    <bool yes = {1}, float[2] one = {1.0, 1.0}>
    {
        y, z = Loop (n, yes, x) <
            body = b (int64 i, bool keep, float[2] state) => (bool again, float[2] next, float[2] scan)
            <float[2] double, float[M] prefix, int64[1] zero, int64[1] end, float[2] inner> {
                again = Identity(keep)
                double = Add(state, state)
                zero = Constant <value = int64[1] {0}> ()
                shape1 = Constant <value = int64[1] {1}> ()
                i1 = Reshape(i, shape1)
                end = Min(i1, shape1)
                prefix = Slice(double, zero, end)
                flag = Cast <to = 9> (i)
                inner = If (flag) <
                    then_branch = p () => (float[2] p1) <float[2] deep> { deep = Neg(double) p1 = Neg(deep) },
                    else_branch = q () => (float[2] q1) { q1 = Identity(double) }
                >
                next = Add(inner, one)
                scan = Identity(double)
            }
        >
    }"""

SCAN = """
    <ir_version: 8, opset_import: ["" : 17]>
    agraph (float[4, 2] x, float[2] s0) => (float[2] s, float[2, 4] z)
    {
        s, z = Scan <num_scan_inputs = 1, scan_output_axes = [1], body = b (float[2] s_in, float[2] row) =>
            (float[2] s_out, float[2] out) <float[2] half> {
                half = Add(row, row)
                s_out = Add(s_in, half)
                out = Identity(half)
            }
        > (s0, x)
    }"""


def _run(model: ir.Model, tensors: list[str], feeds: dict[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """Tensor name to what was observed, after checking that the model's own outputs are unchanged."""
    plain = Session(model, optimize=False).run(feeds)
    tapped, outputs, _ = tap(model, tensors)
    assert [v.name for v in tapped.graph.outputs][: len(plain)] == list(plain)
    result = {}
    for optimize in (False, True):
        got = Session(tapped, optimize=optimize).run(feeds)
        for name, array in plain.items():
            assert np.allclose(got[name], array, rtol=1e-6, atol=0)
        result = {name: got[output] for name, output in outputs.items()}
    return result


def test_top_level() -> None:
    model = ir.from_onnx_text(TOP)
    before = ir.to_proto(model).SerializeToString()
    x, b = np.array([[1.0, -2.0, 3.0]], np.float32), np.array([1.0, 1.0, 1.0], np.float32)
    got = _run(model, ["a", "x", "y", "a"], {"x": x, "b": b})
    assert np.array_equal(got["a"], x + b) and np.array_equal(got["x"], x)
    assert np.array_equal(got["y"], np.maximum(x + b, 0))
    assert ir.to_proto(model).SerializeToString() == before
    assert len(tap(model, ["y"]).model.graph.outputs) == 2, "an output needs no second one"


def test_what_cannot_be_observed_has_a_reason() -> None:
    model = ir.from_onnx_text(TOP)
    next(v for n in model.graph for v in n.outputs if v.name == "shape").type = ir.TensorType(ir.DataType.INT64)
    tapped = tap(model, ["shape", "a"])
    assert tapped.unobservable == {"shape": "it is int64, not float32"} and tapped.outputs == {"a": "a"}
    with pytest.raises(ModelError, match="no tensor named 'nothing'"):
        tap(model, ["nothing"])


def test_only_what_is_needed_stays() -> None:
    model = ir.from_onnx_text(TOP)
    tapped = tap(model, ["a"], keep_outputs=False)
    assert [n.op_type for n in tapped.model.graph] == ["Add"]
    assert [v.name for v in tapped.model.graph.outputs] == ["a"]
    assert [v.name for v in tapped.model.graph.inputs] == ["x", "b"]


def test_what_a_branch_alone_reads_goes_with_it() -> None:
    """Left behind, it would be handed over to onnxruntime, which has dropped it."""
    model = ir.from_onnx_text(
        """<ir_version: 8, opset_import: ["" : 17]>
        agraph (float[400] x, bool c) => (float[400] y, float[400] z) {
            y = Relu(x)
            z = If (c) <then_branch = a () => (float[400] p) { p = Add(x, big) },
                        else_branch = b () => (float[400] q) { q = Neg(x) }>
        }"""
    )
    big = ir.Value(name="big", const_value=ir.tensor(np.ones(400, np.float32), name="big"))
    big.type, big.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([400])
    add = next(node for graph in model.graph.subgraphs() for node in graph if node.op_type == "Add")
    add.replace_input_with(1, big)
    model.graph.register_initializer(big)
    tapped = tap(model, ["y"], keep_outputs=False)
    assert not tapped.model.graph.initializers
    assert list(Session(tapped.model).run({"x": np.ones(400, np.float32), "c": np.array(True)})) == ["y"]
    assert len(model.graph.initializers) == 1


@pytest.mark.parametrize("c", [True, False])
@pytest.mark.parametrize("d", [True, False])
def test_nested_branches(c: bool, d: bool) -> None:
    model = ir.from_onnx_text(NESTED_IF)
    x = np.array([1.0, -3.0], np.float32)
    names = ["t1", "t2", "t3", "t4", "u2", "o1", "o3"]
    got = _run(model, names, {"x": x, "c": np.asarray(c), "d": np.asarray(d)})
    assert list(got) == names
    nothing = np.zeros(0, np.float32)
    expected = {
        "t1": 2 * x if c else nothing,
        "t2": nothing if c else x + 2,
        "t3": nothing if c or not d else np.exp(x + 2),
        "t4": nothing if c or d else np.abs(x + 2),
        "u2": nothing if c else (-np.exp(x + 2) if d else -np.abs(x + 2)),
        "o1": -2 * x if c else nothing,
        "o3": nothing if c or not d else -np.exp(x + 2),
    }
    for name, array in expected.items():
        assert got[name].shape == array.shape and np.allclose(got[name], array, rtol=1e-6), name


@pytest.mark.parametrize("n", [0, 1, 4])
def test_loop_gives_all_iterations(n: int) -> None:
    model = ir.from_onnx_text(LOOP)
    x = np.array([1.0, -3.0], np.float32)
    names = ["double", "prefix", "state", "deep", "next", "inner", "y", "z"]
    got = _run(model, names, {"x": x, "n": np.asarray(n)})
    assert list(got) == names
    state, states, doubles, prefixes, deeps = x, [], [], [], []
    for i in range(n):
        states.append(state)
        doubles.append(2 * state)
        prefixes.append(2 * state[: min(i, 1)])
        deeps.append(-2 * state if i else state[:0])
        state = 2 * state + 1
    for name, parts in {"double": doubles, "prefix": prefixes, "state": states, "deep": deeps}.items():
        flat = np.concatenate([np.zeros(0, np.float32), *parts])
        assert np.array_equal(got[name].reshape(-1), flat), name
    assert np.array_equal(got["y"], state)


def test_scan() -> None:
    model = ir.from_onnx_text(SCAN)
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    got = _run(model, ["half", "s_out", "row"], {"x": x, "s0": np.zeros(2, np.float32)})
    assert np.array_equal(got["half"], 2 * x) and np.array_equal(got["row"], x)
    assert np.array_equal(got["s_out"], np.cumsum(2 * x, axis=0))


def test_name_clashes_are_avoided() -> None:
    model = ir.from_onnx_text(TOP.replace("x2", "x_copy").replace("x_copy", "taken"))
    list(model.graph)[-1].outputs[0].name = "x/copy"
    tapped = tap(model, ["x"])
    names = [v.name for v in tapped.model.graph.outputs]
    assert names[:2] == ["y", "x/copy"] and len(set(names)) == 3
    assert tapped.outputs == {"x": names[2]}


def test_subgraph_tensors_without_type_are_reported() -> None:
    model = ir.from_onnx_text(NESTED_IF.replace("<float[N] t1>", ""))
    assert "type is not known" in tap(model, ["t1"]).unobservable["t1"]


@pytest.mark.zoo
def test_a_real_network_inside_nested_branches() -> None:
    """Every float tensor of silero_vad can be observed; values agree with a model whose branches are taken by hand."""
    folder = os.environ.get("ONNXQ_ZOO")
    if not folder:
        pytest.skip("ONNXQ_ZOO is not set")
    from onnxq.graph.files.load import load
    from onnxq.graph.passes.normalize import normalize

    model = load(Path(folder) / "models" / "silero_vad" / "model.onnx")
    normalize(model)
    names = [
        value.name or ""
        for node in model.graph.all_nodes()
        for value in node.outputs
        if value.dtype == ir.DataType.FLOAT
    ]
    tapped = tap(model, names)
    assert len(names) > 150 and not tapped.unobservable
    with np.load(Path(folder) / "models" / "silero_vad" / "calib.npz") as data:
        feeds = {name: np.asarray(data[name][0]) for name in data.files}
    plain = Session(model).run(feeds)
    got = Session(tapped.model).run(feeds)
    for name, array in plain.items():
        assert np.allclose(got[name], array, atol=1e-5)
    taken = [name for name in names if got[tapped.outputs[name]].size]
    assert 40 < len(taken) < len(names)
    producers = {value.name: node for node in model.graph.all_nodes() for value in node.outputs}
    checked = 0
    for name in taken:
        node = producers[name]
        source = node.inputs[0].name if node.op_type in ("Relu", "Sigmoid") and node.inputs[0] is not None else None
        if source in taken:
            x, y = got[tapped.outputs[source]].astype(np.float64), got[tapped.outputs[name]]
            expected = np.maximum(x, 0) if node.op_type == "Relu" else 1 / (1 + np.exp(-x))
            assert np.allclose(y, expected, atol=1e-5), name
            checked += 1
    assert checked >= 5
