"""Relu and Clip that only quantizers compute come back when the quantizers are taken out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxq
from onnxq import Options
from onnxq.given.unfolded import unfolded
from tests.contract import infer, sqnr
from tests.models import build, images, normal


def net() -> onnx.ModelProto:
    """A Relu and a Relu6 with an Add between, which not every target quantizes, and an output that is a Relu's."""
    return build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 8, 8] y) {
            a = Conv <pads = [1, 1, 1, 1]> (x, w1, b1)
            r = Relu (a)
            c = Conv <pads = [1, 1, 1, 1]> (r, w2, b2)
            d = Clip (c, zero, six)
            s = Add (d, r)
            e = Conv (s, w3)
            y = Relu (e)
        }""",
        w1=normal(4, 3, 3, 3),
        b1=normal(4, seed=1, scale=0.1),
        w2=normal(4, 4, 3, 3, seed=2, scale=2.0),
        b2=normal(4, seed=3, scale=0.1),
        w3=normal(4, 4, 1, 1, seed=4),
        zero=np.float32(0).reshape(()),
        six=np.float32(6).reshape(()),
    )


FEEDS = images(1, 3, 8, 8)


@pytest.fixture(scope="module")
def folded() -> onnx.ModelProto:
    """What onnxruntime runs: no Relu and no Clip, all of it by the bounds of uint8."""
    made = onnxq.quantize(net(), FEEDS, options=Options(placement="all"))
    model: onnx.ModelProto = ir.serde.serialize_model(made.rendered())
    assert not {"Relu", "Clip"} & {node.op_type for node in model.graph.node}
    return model


def test_the_functions_are_written_out_under_the_names_of_their_tensors(folded: onnx.ModelProto) -> None:
    read = onnxq.read(folded)
    made = unfolded(read)
    functions = [n for n in made.model.graph if n.op_type in ("Relu", "Clip")]
    assert [(n.op_type, n.outputs[0].name) for n in functions] == [("Relu", "r"), ("Clip", "d"), ("Relu", "y")]
    assert [v.name for v in made.model.graph.outputs] == ["y"]
    assert not [n for n in read.model.graph if n.op_type in ("Relu", "Clip")], "what was given is left as it is"
    inside = ir.serde.serialize_model(made.model)
    assert sqnr(infer(net(), FEEDS, optimize=False)["y"], infer(inside, FEEDS, optimize=False)["y"]) > 30
    assert "3 Relu or Clip" in made.notes[-1]
    assert unfolded(made) is made


@pytest.mark.parametrize("backend", ["academic", "openvino", "rknn", "snpe", "onnxruntime"])
def test_a_target_that_quantizes_less_computes_the_same(folded: onnx.ModelProto, backend: str) -> None:
    made = onnxq.deploy(folded, backend=backend, options=Options(exclude=("Add",)))
    result = ir.serde.serialize_model(made.rendered())
    assert sqnr(infer(folded, FEEDS, optimize=False)["y"], infer(result, FEEDS, optimize=False)["y"]) > 25


def test_grids_that_begin_below_zero_and_tensors_that_cannot_be_negative_get_none() -> None:
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 4, 4] y) {
            a = Conv <pads = [1, 1, 1, 1]> (x, w1)
            p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (a)
            s = Sigmoid (p)
            y = Add (s, s)
        }""",
        w1=normal(4, 3, 3, 3),
    )
    made = onnxq.quantize(model, FEEDS, options=Options(placement="all"))
    read = onnxq.read(made.rendered())
    starts = {s.tensor: int(read.qparams[s.name].zero_point) for s in read.plan.sites if s.role == "activation"}
    assert starts["a"] > 0 and starts["s"] == starts["y"] == 0
    assert unfolded(read) is read


@pytest.mark.parametrize(
    ("dtype", "zero", "made"), [("u", 0, ["Relu"]), ("", -128, ["Relu"]), ("", 0, []), ("u", 3, [])]
)
def test_a_relu_is_missing_where_the_lowest_integer_is_zero(dtype: str, zero: int, made: list[str]) -> None:
    """Of int8 that is -128, as onnxruntime's quantizer writes it; a zero point of 0 is the middle there."""
    model = build(
        """(float[2, 8] x) => (float[2, 4] y) {
            a = MatMul (x, w)
            q = QuantizeLinear (a, s, z)  y = DequantizeLinear (q, s, z)
        }""",
        w=normal(8, 4),
        s=np.float32(0.05),
        z=np.array(zero, f"{dtype}int8"),
    )
    inside = unfolded(onnxq.read(model)).model
    assert [node.op_type for node in inside.graph] == ["MatMul", *made]


def shared(second: str, **constants: np.ndarray) -> onnx.ModelProto:
    """What a Conv makes, half of it negative, is read through a quantizer that begins at 0 and in another way."""
    return build(
        f"""(float[1, 3, 8, 8] x) => (float[1, 4, 8, 8] y) {{
            xq = QuantizeLinear (x, s, z)  xd = DequantizeLinear (xq, s, z)
            wd = DequantizeLinear <axis = 0> (w, sw, zw)
            a = Conv <pads = [1, 1, 1, 1]> (xd, wd)
            q = QuantizeLinear (a, t, from)  d = DequantizeLinear (q, t, from)
            vd = DequantizeLinear <axis = 0> (v, sw, zw)
            c = Conv (d, vd)
            {second}
            y = Add (c, e)
        }}""",
        w=np.random.default_rng(0).integers(-127, 128, (4, 3, 3, 3)).astype(np.int8),
        v=np.random.default_rng(1).integers(-127, 128, (4, 4, 1, 1)).astype(np.int8),
        sw=np.array([0.004] * 4, np.float32),
        zw=np.zeros(4, np.int8),
        s=np.float32(0.04),
        z=np.uint8(128),
        t=np.float32(0.03),
        **{"from": np.uint8(0), **constants},
    )


AGAIN = "p = QuantizeLinear (a, t, from)  e = DequantizeLinear (p, t, from)"
COARSER = "p = QuantizeLinear (a, t2, from)  e = DequantizeLinear (p, t2, from)"
BELOW_ZERO = "p = QuantizeLinear (a, t2, z)  e = DequantizeLinear (p, t2, z)"
FLOAT = "e = Abs (a)"


@pytest.mark.parametrize("backend", ["academic", "snpe", "onnxruntime", "openvino"])
@pytest.mark.parametrize("second", [AGAIN, COARSER, BELOW_ZERO, FLOAT])
def test_a_tensor_that_is_read_in_two_ways_gets_it_for_those_that_read_from_zero(second: str, backend: str) -> None:
    source = shared(second, **({"t2": np.float32(0.06)} if "t2" in second else {}))
    made = unfolded(onnxq.read(source))
    functions = {n.inputs[0].name: n for n in made.model.graph if n.op_type == "Relu" and n.inputs[0] is not None}
    (before,) = functions
    assert (before == "a") == (second in (BELOW_ZERO, FLOAT)), "the name stays with what all or the others read"
    expected = infer(source, FEEDS, optimize=False)["y"]
    quantized = infer(ir.serde.serialize_model(made.qdq()), FEEDS, optimize=False)["y"]
    assert sqnr(expected, quantized) > 100
    inside = infer(ir.serde.serialize_model(made.model), FEEDS, optimize=False)["y"]
    assert sqnr(expected, inside) > 25
    result = onnxq.deploy(source, backend=backend).rendered()
    assert sqnr(expected, infer(ir.serde.serialize_model(result), FEEDS, optimize=False)["y"]) > 25


def test_pairs_of_one_grid_on_one_tensor_are_one_quantizer() -> None:
    read = onnxq.read(shared(AGAIN))
    (site,) = [s for s in read.plan.sites if s.tensor == "a"]
    assert site.produced
    assert len(site.readers) == 2


def test_grids_of_a_scale_for_each_channel_are_left() -> None:
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 8, 8] y) {
            a = Conv <pads = [1, 1, 1, 1]> (x, w)
            q = QuantizeLinear <axis = 1> (a, s, z)  y = DequantizeLinear <axis = 1> (q, s, z)
        }""",
        w=normal(4, 3, 3, 3),
        s=np.full(4, 0.05, np.float32),
        z=np.zeros(4, np.uint8),
    )
    read = onnxq.read(model)
    assert unfolded(read) is read


def test_a_clip_to_other_bounds_comes_back_as_it_was(tmp_path: Path) -> None:
    """The grid does not show that it ends where a Clip did: the file says so of the tensor, not where it was a Relu."""
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 8, 8] y) {
            a = Conv <pads = [1, 1, 1, 1]> (x, w1)
            c = Clip (a, low, high)
            b = Conv <pads = [1, 1, 1, 1]> (c, w2)
            m = Clip (b, low)
            d = Conv <pads = [1, 1, 1, 1]> (m, w2)
            r = Relu (d)
            y = Conv <pads = [1, 1, 1, 1]> (r, w2)
        }""",
        w1=normal(4, 3, 3, 3, scale=3.0),
        w2=normal(4, 4, 3, 3, seed=2),
        low=np.float32(-0.4).reshape(()),
        high=np.float32(0.5).reshape(()),
    )
    onnxq.quantize(model, FEEDS, options=Options(placement="all"), output=tmp_path / "q.onnx")
    written = onnx.load(tmp_path / "q.onnx")
    assert not {"Relu", "Clip"} & {node.op_type for node in written.graph.node}
    made = unfolded(onnxq.read(tmp_path / "q.onnx"))
    functions = [(n.op_type, n.outputs[0].name) for n in made.model.graph if n.op_type in ("Relu", "Clip")]
    assert functions == [("Clip", "c"), ("Clip", "m"), ("Relu", "r")]
    inside = ir.serde.serialize_model(made.model)
    assert sqnr(infer(model, FEEDS, optimize=False)["y"], infer(inside, FEEDS, optimize=False)["y"]) > 30
    deployed = onnxq.deploy(tmp_path / "q.onnx", backend="openvino", output=tmp_path / "openvino.onnx")
    kept = {n.outputs[0].name for n in deployed.model.graph if n.op_type == "Clip"}
    assert {"c", "m"} <= kept, "a target that keeps its functions has them"
    again = [n.op_type for n in unfolded(made).model.graph if n.op_type in ("Relu", "Clip")]
    assert again == ["Clip", "Clip", "Relu"], "written out once"
