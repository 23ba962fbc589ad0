"""Reading a quantized model back: the same sites and numbers, and the same model when it is rendered again."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxq
from onnxq import Options, Quantized
from onnxq.ort.session import Session
from tests.models import build, f32, feeds_for, images, normal
from tests.planning.test_planner import concat, conv_relu, recurrent, residual
from tests.targets import classifier


def equal_outputs(a: object, b: object, feeds: dict[str, np.ndarray]) -> None:
    left = Session(a, optimize=False).run(feeds)  # type: ignore[arg-type]
    right = Session(b, optimize=False).run(feeds)  # type: ignore[arg-type]
    assert left.keys() == right.keys()
    for name in left:
        np.testing.assert_array_equal(left[name], right[name])


@pytest.mark.parametrize("fmt", ["qdq", "fake-quantize"])
@pytest.mark.parametrize("make", [conv_relu, residual, concat, recurrent])
def test_round_trip(make: object, fmt: str, tmp_path: Path) -> None:
    model = make()  # type: ignore[operator]
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    feeds = images(*shape)
    path = tmp_path / "q.onnx"
    quantized = onnxq.quantize(model, feeds, output=path, options=Options(placement="all", format=fmt))
    back = onnxq.read(path)
    assert isinstance(back, Quantized)
    assert len(back.plan.sites) == len(quantized.plan.sites)
    found = {s.tensor: back.qparams[s.name] for s in back.plan.sites}
    for site in quantized.plan.sites:
        wanted = quantized.qparams[site.name]
        np.testing.assert_array_equal(found[site.tensor].scale.reshape(-1), wanted.scale.reshape(-1))
        np.testing.assert_array_equal(found[site.tensor].zero_point.reshape(-1), wanted.zero_point.reshape(-1))
    equal_outputs(path, back.qdq(), feeds[0])


def test_the_float_graph_holds_no_quantizer(tmp_path: Path) -> None:
    path = tmp_path / "q.onnx"
    onnxq.quantize(residual(), images(1, 16, 8, 8), output=path, options=Options(placement="all"))
    back = onnxq.read(path)
    ops = {n.op_type for n in back.model.graph.all_nodes()}
    assert not ops & {"QuantizeLinear", "DequantizeLinear", "FakeQuantize", "Cast"}


def test_float_weight_behind_a_pair_as_training_tools_write_it() -> None:
    model = build(
        """(float[2, 8] x) => (float[2, 4] y) {
            xq = QuantizeLinear (x, s, z)
            xd = DequantizeLinear (xq, s, z)
            wq = QuantizeLinear <axis = 1> (w, ws, wz)
            wd = DequantizeLinear <axis = 1> (wq, ws, wz)
            y = MatMul (xd, wd)
        }""",
        s=f32(0.05),
        z=np.uint8(120),
        w=normal(8, 4),
        ws=f32([0.01, 0.02, 0.03, 0.04]),
        wz=np.zeros(4, np.int8),
    )
    back = onnxq.read(model)
    roles = {s.tensor: s.role for s in back.plan.sites}
    assert roles == {"x": "activation", "w": "weight"}
    equal_outputs(model.SerializeToString(), back.qdq(), images(2, 8)[0])


def test_a_model_of_onnxruntimes_quantizer(tmp_path: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_static

    from tests.reader import Reader

    source, path = tmp_path / "f.onnx", tmp_path / "q.onnx"
    onnx.save(conv_relu(), source)
    quantize_static(source, path, Reader(images(1, 16, 8, 8)), per_channel=True, weight_type=QuantType.QInt8)
    back = onnxq.read(path)
    assert sum(s.role == "weight" for s in back.plan.sites) == 2
    assert not [n for n in back.model.graph.all_nodes() if n.op_type == "DequantizeLinear"]
    equal_outputs(path, back.qdq(), images(1, 16, 8, 8)[0])


def test_what_is_no_pair_stays_and_is_named() -> None:
    graph = helper.make_graph(
        [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"], name="lone")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, [2])],
        [numpy_helper.from_array(np.float32(0.1), "s"), numpy_helper.from_array(np.uint8(3), "z")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    back = onnxq.read(model)
    assert not back.plan.sites
    assert any("lone" in note for note in back.notes)


PAIR = {"s": f32(0.05), "z": np.uint8(120), "s2": f32(0.2), "z2": np.uint8(100)}


@pytest.mark.parametrize(
    ("signature", "body"),
    [
        ("float[2, 8] y", "q = QuantizeLinear (x, s, z) y = DequantizeLinear (q, s, z)"),
        (
            "float[2, 8] y, float[2, 8] w",
            "a = Abs (x) q = QuantizeLinear (a, s, z) y = DequantizeLinear (q, s, z) w = Neg (a)",
        ),
        ("float[2, 8] a, float[2, 8] y", "a = Abs (x) q = QuantizeLinear (a, s, z) y = DequantizeLinear (q, s, z)"),
        (
            "float[2, 8] y, float[2, 8] w",
            "a = Abs (x) q = QuantizeLinear (a, s, z) y = DequantizeLinear (q, s, z) w = DequantizeLinear (q, s, z)",
        ),
        (
            "float[2, 8] y",
            """q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z)
            r = QuantizeLinear (d, s2, z2) e = DequantizeLinear (r, s2, z2) y = Neg (e)""",
        ),
        (
            "float[2, 8] y",
            """a = Abs (x) q = QuantizeLinear (a, s, z) d = DequantizeLinear (q, s, z)
            r = QuantizeLinear (a, s2, z2) e = DequantizeLinear (r, s2, z2) y = Sub (d, e)""",
        ),
    ],
    ids=["input is output", "output and float reader", "float output", "two outputs", "twice in a row", "two scales"],
)
def test_odd_places_give_the_same_model_again(signature: str, body: str) -> None:
    used = {name: array for name, array in PAIR.items() if re.search(rf"\b{name}\b", body)}
    model = build(f"(float[2, 8] x) => ({signature}) {{ {body} }}", **used)
    back = onnxq.read(model)
    again = onnx.load_model_from_string(onnx_bytes(back))
    assert [o.name for o in again.graph.output] == [o.name for o in model.graph.output]
    quantizers = [sum(n.op_type == "QuantizeLinear" for n in m.graph.node) for m in (model, again)]
    assert quantizers[0] == quantizers[1] == len(back.plan.sites)
    equal_outputs(model.SerializeToString(), back.qdq(), images(2, 8)[0])


def onnx_bytes(quantized: Quantized) -> bytes:
    return bytes(ir.to_proto(quantized.qdq()).SerializeToString())


def test_integers_unpacked_twice_are_one_constant() -> None:
    model = build(
        """(float[2, 8] x) => (float[2, 8] y) {
            w = DequantizeLinear (wq, s, z)  a = MatMul (x, w)
            v = DequantizeLinear (wq, s, z)  y = MatMul (a, v)
        }""",
        wq=np.arange(-32, 32, dtype=np.int8).reshape(8, 8),
        z=np.int8(0),
        s=f32(0.05),
    )
    back = onnxq.read(model)
    (site,) = back.plan.sites
    assert len(site.readers) == 2
    assert set(back.plan.stored.values()) == {"MatMul"} and not back.plan.quantized, "only weights are integers"
    equal_outputs(model.SerializeToString(), back.qdq(), images(2, 8)[0])


@pytest.mark.parametrize(("axis", "scale"), [(2, f32(np.linspace(0.01, 0.05, 8))), (None, f32(0.05))])
def test_rows_gathered_as_integers_are_a_table(axis: int | None, scale: np.ndarray) -> None:
    model = build(
        """(int64[2, 3] ids) => (float[2, 3, 4] y) {
            rows = Gather (table, ids)
            picked = DequantizeLinear (rows, s, z)
            y = MatMul (picked, w)
        }""",
        table=np.arange(-128, 128, dtype=np.int16).astype(np.int8).reshape(32, 8),
        s=scale,
        z=np.zeros(scale.shape, np.int8),
        w=normal(8, 4),
    )
    if axis is not None:
        model.graph.node[1].attribute.append(helper.make_attribute("axis", axis))
    back = onnxq.read(model)
    (site,) = back.plan.sites
    assert (site.role, back.plan.stored) == ("weight", {back.model.graph[0].name: "Gather"})
    assert [n.op_type for n in back.model.graph] == ["Gather", "MatMul"]
    feeds = {"ids": np.array([[0, 31, 5], [7, 7, -1]])}
    equal_outputs(model.SerializeToString(), back.model, feeds)
    equal_outputs(model.SerializeToString(), back.qdq(), feeds)


def test_rows_that_cannot_be_unpacked_before_they_are_gathered_stay() -> None:
    """Their scales lie along the axis that is gathered: they are those of positions in the text."""
    model = build(
        """(int64[3] ids) => (float[3, 8] y) {
            rows = Gather (table, ids)
            picked = DequantizeLinear <axis = 0> (rows, s, z)
            y = Neg (picked)
        }""",
        table=np.arange(-128, 128, dtype=np.int16).astype(np.int8).reshape(32, 8),
        s=f32([0.1, 0.2, 0.3]),
        z=np.zeros(3, np.int8),
    )
    back = onnxq.read(model)
    assert not back.plan.sites and any("computed at run time" in note for note in back.notes)
    equal_outputs(model.SerializeToString(), back.qdq(), {"ids": np.array([0, 31, 5])})


def test_a_scale_of_one_element_is_per_tensor() -> None:
    model = build(
        """(float[2, 8] x) => (float[2, 8] y) {
            a = Abs (x) q = QuantizeLinear (a, s, z) d = DequantizeLinear (q, s, z) y = Neg (d)
        }""",
        s=f32([0.05]),
        z=np.array([120], np.uint8),
    )
    back = onnxq.read(model)
    assert back.qparams["a"].scale.shape == back.qparams["a"].zero_point.shape == ()
    equal_outputs(model.SerializeToString(), back.qdq(), images(2, 8)[0])


def test_fake_quantize_with_parameters_computed_at_run_time_stays(tmp_path: Path) -> None:
    path = tmp_path / "q.onnx"
    options = Options(placement="all", format="fake-quantize")
    onnxq.quantize(conv_relu(), images(1, 16, 8, 8), output=path, options=options)
    model = onnx.load(path)
    call = next(n for n in model.graph.node if n.op_type == "FakeQuantize" and n.input[0] == "x")
    model.graph.node.insert(0, helper.make_node("Abs", [call.input[1]], ["run_time_scale"], name="abs"))
    call.input[1] = "run_time_scale"
    model.graph.input.append(helper.make_tensor_value_info("free", TensorProto.FLOAT, []))
    model.graph.node[0].input[0] = "free"
    back = onnxq.read(model)
    assert any(call.name in note for note in back.notes)
    assert {s.tensor for s in back.plan.sites} == {"w1", "b1", "r", "w2", "y"}
    feeds = {**images(1, 16, 8, 8)[0], "free": f32(0.03)}
    equal_outputs(model.SerializeToString(), back.qdq(), feeds)


@pytest.mark.parametrize("narrow", [False, True])
def test_whether_the_lowest_integer_is_used_is_told_by_the_weights(narrow: bool) -> None:
    stored = np.arange(-128 + narrow, 128, dtype=np.int64)[-128:].astype(np.int8).reshape(8, 16)
    stored[0, 0] = -127 if narrow else -128
    model = build(
        "(float[2, 8] x) => (float[2, 16] y) { w = DequantizeLinear (wq, s, z) y = MatMul (x, w) }",
        wq=stored,
        z=np.int8(0),
        s=f32(0.05),
    )
    (site,) = onnxq.read(model).plan.sites
    assert site.spec.narrow_range == narrow


@pytest.mark.parametrize("backend", ["onnxruntime", "tensorrt", "openvino", "qnn"])
@pytest.mark.parametrize("make", [residual, recurrent, classifier])
def test_what_runs_in_integers_is_what_was_planned(make: Callable[[], onnx.ModelProto], backend: str) -> None:
    made = onnxq.quantize(make(), feeds_for(make()), backend=backend)
    back = onnxq.read(ir.to_proto(made.qdq()), backend=backend)
    assert back.plan.quantized == made.plan.quantized
    floats = {kept.node for kept in made.plan.kept_float} & {node.name for node in back.model.graph}
    assert floats == {kept.node for kept in back.plan.kept_float}
    assert all(kept.reason for kept in back.plan.kept_float)


def test_an_operator_with_a_float_output_is_none_in_integers() -> None:
    model = build(
        """(float[1, 2, 4, 4] x) => (float[1, 2, 2, 2] y) {
            q = QuantizeLinear (x, s, z)  d = DequantizeLinear (q, s, z)
            p = AveragePool <kernel_shape = [2, 2], strides = [2, 2]> (d)
            y = Relu (p)
        }""",
        s=f32(0.05),
        z=np.uint8(128),
    )
    plan = onnxq.read(model).plan
    assert (plan.done, plan.total) == (0, 2)
    assert {kept.op: kept.reason for kept in plan.kept_float} == {
        "AveragePool": "its output is not quantized in the model given",
        "Relu": "not quantized in the model given",
    }


@pytest.mark.parametrize("q", ["x, s", "x, s, zero"])
@pytest.mark.parametrize("dq", ["xq, s", "xq, s, zero"])
def test_no_zero_point_is_a_zero_point_of_0(q: str, dq: str) -> None:
    model = build(
        f"""(float[1, 4, 4, 4] x) => (float[1, 4, 4, 4] y) {{
            xq = QuantizeLinear ({q})
            xd = DequantizeLinear ({dq})
            y = Relu (xd)
        }}""",
        s=f32(0.02),
        zero=np.uint8(0).reshape(()),
    )
    back = onnxq.read(model)
    (site,) = back.plan.sites
    assert (site.tensor, site.spec.signed, int(back.qparams[site.name].zero_point)) == ("x", False, 0)
    equal_outputs(ir.from_proto(model), back.qdq(), images(1, 4, 4, 4)[0])


@pytest.mark.parametrize(("other", "same"), [(-3, True), (1, True), (-2, False)])
def test_axes_from_the_end_are_axes(other: int, same: bool) -> None:
    model = build(
        f"""(float[1, 4, 4, 4] x) => (float[1, 4, 4, 4] y) {{
            xq = QuantizeLinear <axis = 1> (x, s, zero)
            xd = DequantizeLinear <axis = {other}> (xq, s, zero)
            y = Relu (xd)
        }}""",
        s=f32([0.02, 0.03, 0.04, 0.05]),
        zero=np.zeros(4, np.uint8),
    )
    back = onnxq.read(model)
    assert [site.tensor for site in back.plan.sites] == ["x"] * same
    equal_outputs(ir.from_proto(model), back.qdq(), images(1, 4, 4, 4)[0])
