"""A quantizer that the target leaves out keeps its bounds where they cut off much of its tensor."""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxq
from tests.contract import infer, sqnr
from tests.models import build, f32, images

FEEDS = images(1, 4, 8, 8)
GRIDS = {
    "s": f32(0.03),
    "z": np.uint8(128),
    "sw": f32([0.004, 0.005, 0.006, 0.007]),
    "zw": np.zeros(4, np.int8),
    "w": np.random.default_rng(0).integers(-127, 128, (4, 4, 3, 3)).astype(np.int8),
    "v": np.random.default_rng(1).integers(-127, 128, (4, 4, 1, 1)).astype(np.int8),
}


def clipping(step: float, last: str = "", **more: np.ndarray) -> onnx.ModelProto:
    """A convolution whose result, about -12 to 12, is quantized behind it, in 8 bits of a step."""
    return build(
        f"""(float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) {{
            xq = QuantizeLinear (x, s, z)  xd = DequantizeLinear (xq, s, z)
            wd = DequantizeLinear <axis = 0> (w, sw, zw)
            c = Conv <pads = [1, 1, 1, 1]> (xd, wd)
            q = QuantizeLinear (c, t, z)  {last or "y = DequantizeLinear (q, t, z)"}
        }}""",
        **{**GRIDS, "t": f32(step), **more},
    )


def outputs(model: onnx.ModelProto | ir.Model) -> list[np.ndarray]:
    proto = ir.serde.serialize_model(model) if isinstance(model, ir.Model) else model
    return list(infer(proto, FEEDS, optimize=False)["y"])


def warnings(made: onnxq.Quantized) -> str:
    assert made.verification is not None
    return "\n".join(made.verification.warnings)


@pytest.mark.parametrize("backend", ["openvino", "academic"])
def test_a_clip_stays_where_a_quantizer_left_out_cuts_off_much(backend: str) -> None:
    source = clipping(0.03)
    made = onnxq.deploy(source, backend=backend)
    result = made.rendered()
    assert [node.op_type for node in result.graph][-1] == "Clip"
    assert [value.name for value in result.graph.outputs] == ["y"]
    low, high = -128 * 0.03, 127 * 0.03
    assert all(a.min() >= low - 1e-5 and a.max() <= high + 1e-5 for a in outputs(result))
    assert sqnr(outputs(source), outputs(result)) > 35
    assert [k.reason for k in made.plan.kept_float if k.op == "Clip"] == [
        "the bounds of a quantizer that the model given has there"
    ]
    assert any("a Clip keeps the bounds of quantizers that are left out: " in note for note in made.notes)
    assert "clip what passes now" not in warnings(made)


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "academic"])
def test_there_is_none_where_rounding_loses_more(backend: str) -> None:
    source = clipping(0.15)
    result = onnxq.deploy(source, backend=backend).rendered()
    assert "Clip" not in {node.op_type for node in result.graph}
    assert sqnr(outputs(source), outputs(result)) > 30


def test_who_reads_the_tensor_past_the_quantizer_reads_all_of_it() -> None:
    source = clipping(0.03, "d = DequantizeLinear (q, t, z)  e = Sigmoid (d)  f = Abs (c)  y = Add (e, f)")
    result = onnxq.deploy(source, backend="academic").rendered()
    (clip,) = [node for node in result.graph if node.op_type == "Clip"]
    assert [use.node.op_type for use in clip.outputs[0].uses()] == ["Sigmoid"]
    assert sqnr(outputs(source), outputs(result)) > 35


@pytest.mark.parametrize("backend", ["openvino", "academic"])
def test_a_clip_stays_inside_a_branch(backend: str) -> None:
    source = build(
        """(float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) {
            largest = ReduceMax <keepdims = 0> (x)  always = Greater (largest, least)
            y = If (always) <
                then_branch = one () => (float[1, 4, 8, 8] o) {
                    xq = QuantizeLinear (x, s, z)  xd = DequantizeLinear (xq, s, z)
                    wd = DequantizeLinear <axis = 0> (w, sw, zw)
                    c = Conv <pads = [1, 1, 1, 1]> (xd, wd)
                    q = QuantizeLinear (c, t, z)  o = DequantizeLinear (q, t, z)
                },
                else_branch = other () => (float[1, 4, 8, 8] n) { n = Neg (x) }
            >
        }""",
        **GRIDS,
        t=f32(0.03),
        least=f32(-100),
    )
    made = onnxq.deploy(source, backend=backend)
    result = made.rendered()
    assert "Clip" in {node.op_type for node in result.graph.all_nodes()}
    assert sqnr(outputs(source), outputs(result)) > 35 and "clip what passes now" not in warnings(made)


RELU = """d = DequantizeLinear (q, t, z)  r = Relu (d)
    rq = QuantizeLinear (r, u, from)  rd = DequantizeLinear (rq, u, from)
    vd = DequantizeLinear <axis = 0> (v, sw, zw)  y = Conv (rd, vd)"""


def test_what_cannot_be_kept_is_said_with_its_share() -> None:
    """Between a convolution and the Relu that is computed with it nothing may stand."""
    source = clipping(0.03, RELU, u=f32(0.05), **{"from": np.uint8(0)})
    made = onnxq.deploy(source, backend="openvino")
    assert "Clip" not in {node.op_type for node in made.rendered().graph}
    told = warnings(made)
    (share,) = re.findall(r"clip what passes now, on random inputs ([\d.]+)% of 'c'", told)
    assert 5 < float(share) < 15, "what lies below the grid, as much as above it, the Relu cuts off anyway"
    assert "rounds less often" not in told


def test_bounds_that_the_quantizer_behind_the_function_sets_too_are_not_missed() -> None:
    source = clipping(0.03, RELU, u=f32(0.015), **{"from": np.uint8(0)})
    made = onnxq.deploy(source, backend="openvino")
    assert "clip what passes now" not in warnings(made)
    assert sqnr(outputs(source), outputs(made.rendered())) > 30
