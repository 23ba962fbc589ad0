"""Group 15: custom operators and domains."""

from __future__ import annotations

import onnx

from tests.cases.case import Given, case
from tests.models import build, images, normal


def unknown() -> onnx.ModelProto:
    """An operator that onnxruntime does not know, between two Convs."""
    return build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 4, 4] y) {
            [c1] a = Conv (x, w)
            [odd] b = my.ops.Twist <strength = 3> (a)
            [c2] y = Conv (b, v)
        }""",
        domains={"my.ops": 1},
        w=normal(4, 3, 3, 3),
        v=normal(4, 4, 3, 3, seed=1),
    )


@case("G15")
def custom_function() -> Given:
    """An operator of a private domain that the model defines itself."""
    model = unknown()
    model.functions.append(
        onnx.parser.parse_function(
            """<domain: "my.ops", opset_import: ["" : 17]>
            Twist <strength> (a) => (b) { b = Tanh (a) }"""
        )
    )
    return Given(model, images(1, 3, 8, 8))


@case("G15")
def operators_of_onnxruntime() -> Given:
    """An operator of com.microsoft between two Convs."""
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 4, 4] y) {
            [c1] a = Conv (x, w)
            [corner] b = com.microsoft.Trilu (a)
            [c2] y = Conv (b, v)
        }""",
        domains={"com.microsoft": 1},
        w=normal(4, 3, 3, 3),
        v=normal(4, 4, 3, 3, seed=1),
    )
    return Given(model, images(1, 3, 8, 8))


@case("G15")
def fused_conv() -> Given:
    """A model that onnxruntime has optimized: a FusedConv."""
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) {
            [fused] y = com.microsoft.FusedConv <activation = "Relu", kernel_shape = [3, 3]> (x, w)
        }""",
        domains={"com.microsoft": 1},
        w=normal(4, 3, 3, 3),
    )
    return Given(model, images(1, 3, 8, 8))


@case("G15")
def conv_of_another_domain() -> Given:
    """A Conv of a private domain is no Conv."""
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) { [mine] a = my.ops.Conv (x, w)  [c] y = Conv (x, w) }""",
        domains={"my.ops": 1},
        w=normal(4, 3, 3, 3),
    )
    model.graph.output.append(onnx.helper.make_tensor_value_info("a", onnx.TensorProto.FLOAT, [1, 4, 6, 6]))
    model.functions.append(
        onnx.parser.parse_function(
            """<domain: "my.ops", opset_import: ["" : 17]>
            Conv (x, w) => (y) { c = Conv (x, w)  y = Exp (c) }"""
        )
    )
    return Given(model, images(1, 3, 8, 8))


@case("G15", refuse="Twist")
def unknown_custom_op() -> Given:
    """An operator that onnxruntime does not know between two Convs: an error that names it."""
    return Given(unknown(), images(1, 3, 8, 8))


@case("G15", asked={"custom_op_library": "libnone.so"}, refuse="libnone", theirs="quantize_static takes no library")
def missing_library() -> Given:
    """The library of custom operators is missing: an error before any work."""
    return Given(unknown(), images(1, 3, 8, 8))
