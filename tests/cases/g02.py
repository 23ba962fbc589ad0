"""Group 2: operator sets, IR versions, initializers that are inputs."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.cases.case import Given, case
from tests.models import build, f32, feeds_for, images, normal


def listed_as_inputs(model: onnx.ModelProto) -> onnx.ModelProto:
    """Every initializer is an input too."""
    for tensor in model.graph.initializer:
        model.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    return model


def conv(opset: int = 17, ir_version: int = 8) -> onnx.ModelProto:
    return build(
        "(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) { [c] y = Conv (x, w, b) }",
        opset=opset,
        ir_version=ir_version,
        w=normal(4, 3, 3, 3),
        b=normal(4, seed=1),
    )


@case("G2")
def data_overrides_a_default() -> Given:
    """The data gives a value for an input that has a default."""
    model = build(
        "(float[N, 8] x) => (float[N, 8] y) { s = Mul (x, k)  [m] y = MatMul (s, w) }", w=normal(8, 8), k=f32(1)
    )
    model.graph.input.append(helper.make_tensor_value_info("k", TensorProto.FLOAT, []))
    feeds = [{**sample, "k": f32(3)} for sample in feeds_for(model, N=4)]
    return Given(model, feeds)


@case("G2")
def opset12_reducesum_axes_attr() -> Given:
    """ReduceSum of opset 12: converted if the opset is raised."""
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4] y) {
            c = Conv (x, w)
            [sum] y = ReduceSum <axes = [2, 3], keepdims = 0> (c)
        }""",
        opset=12,
        ir_version=7,
        w=normal(4, 3, 3, 3),
    )
    return Given(model, images(1, 3, 8, 8))


@case("G2")
def three_opset_imports() -> Given:
    """An operator set that no node uses is imported."""
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) {
            c = Conv (x, w)
            y = com.microsoft.Gelu (c)
        }""",
        domains={"com.microsoft": 1, "private.unused": 7},
        w=normal(4, 3, 3, 3),
    )
    return Given(model, images(1, 3, 8, 8))


@case("G2", refuse="999")
def opset_from_the_future() -> Given:
    """An opset that does not exist: an error that names it."""
    model = build("(float[1, 4] x) => (float[1, 3] y) { y = MatMul (x, w) }", opset=999, w=normal(4, 3))
    return Given(model, images(1, 4))


@case("G2")
def ir3_inits_as_inputs() -> Given:
    """IR version 3: every initializer is listed as an input."""
    return Given(listed_as_inputs(conv(opset=8, ir_version=3)), images(1, 3, 8, 8))


@case("G2", least=15)
def ir3_branch() -> Given:
    """IR version 3, weights read only in branches of an If."""
    branch = "(float[1, 4, 6, 6] {0}) {{ [{0}_node] {0} = {1} }}"
    model = build(
        f"""(float[1, 3, 8, 8] x, bool choice) => (float[1, 4, 6, 6] y) {{
            y = If (choice) <
                then_branch = yes () => {branch.format("p", "Conv (x, w)")},
                else_branch = no () => {branch.format("q", "Conv (x, v)")}
            >
        }}""",
        opset=8,
        ir_version=3,
        w=normal(4, 3, 3, 3),
        v=normal(4, 3, 3, 3, seed=1),
    )
    feeds = [{**sample, "choice": np.array(i % 2 == 0)} for i, sample in enumerate(images(1, 3, 8, 8))]
    return Given(listed_as_inputs(model), feeds)


@case("G2")
def ir8_overridable_weight() -> Given:
    """A weight is an initializer and an input: callers may still override it."""
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) {
            [c1] h = Conv <pads = [1, 1, 1, 1]> (x, w)
            [c2] y = Conv (h, v)
        }""",
        w=normal(3, 3, 3, 3),
        v=normal(4, 3, 3, 3, seed=1),
    )
    w = model.graph.initializer[0]
    model.graph.input.append(helper.make_tensor_value_info("w", w.data_type, list(w.dims)))
    return Given(model, images(1, 3, 8, 8))


@case("G2", asked={"weight_bits": 4}, least=15)
def int4_weight_opset17() -> Given:
    """4-bit weights asked of a model of opset 17: standard operators of opset 21."""
    model = build("(float[N, 64] x) => (float[N, 32] y) { [m] y = MatMul (x, w) }", w=normal(64, 32))
    return Given(model, feeds_for(model, N=4))


@case("G2")
def opset_7() -> Given:
    """A model of opset 7, older than the operators that quantize."""
    return Given(conv(opset=7), images(1, 3, 8, 8))
