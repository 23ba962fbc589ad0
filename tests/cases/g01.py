"""Group 1: the structure of the graph."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from tests.cases.case import Given, case
from tests.models import build, f32, feeds_for, images, normal


def conv_bn(training: int, outputs: str, extra: str = "") -> onnx.ModelProto:
    return build(
        f"""(float[1, 3, 8, 8] x) => (float[1, 8, 8, 8] y{extra}) {{
            c = Conv <pads = [1, 1, 1, 1]> (x, w)
            {outputs} = BatchNormalization <training_mode = {training}> (c, scale, shift, mean, var)
        }}""",
        w=normal(8, 3, 3, 3),
        scale=f32(np.linspace(0.5, 1.5, 8)),
        shift=normal(8, seed=1, scale=0.3),
        mean=normal(8, seed=2, scale=0.3),
        var=f32(np.linspace(0.5, 2, 8)),
    )


@case("G1")
def input_is_output() -> Given:
    """One tensor is graph input and graph output: it passes through in float."""
    model = build(
        "(float[1, 3, 8, 8] x) => (float[1, 3, 8, 8] x, float[1, 4, 6, 6] y) { y = Conv (x, w) }", w=normal(4, 3, 3, 3)
    )
    model.graph.output[0].CopyFrom(model.graph.input[0])
    return Given(model, images(1, 3, 8, 8))


@case("G1")
def constant_is_output() -> Given:
    """A weight is a graph output: it stays float there."""
    model = build(
        "(float[1, 3, 8, 8] x) => (float[4, 3, 3, 3] w, float[1, 4, 6, 6] y) { y = Conv (x, w) }", w=normal(4, 3, 3, 3)
    )
    return Given(model, images(1, 3, 8, 8))


@case("G1")
def two_outputs_by_identity() -> Given:
    """One tensor leaves under two names."""
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y, float[1, 4, 6, 6] z) {
            y = Conv (x, w)
            z = Identity (y)
        }""",
        w=normal(4, 3, 3, 3),
    )
    return Given(model, images(1, 3, 8, 8))


@case("G1")
def same_tensor_twice_in_node() -> Given:
    """Add (a, a): one quantizer feeds both inputs."""
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) {
            a = Conv (x, w)
            y = Add (a, a)
        }""",
        w=normal(4, 3, 3, 3),
    )
    return Given(model, images(1, 3, 8, 8))


@case("G1")
def optional_empty_outputs() -> Given:
    """Optional outputs named '': runs at every optimization level."""
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 3, 3] y) {
            c = Conv (x, w)
            m = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (c)
            y = Dropout (m)
        }""",
        w=normal(4, 3, 3, 3),
    )
    for node in model.graph.node[1:]:
        node.output.append("")
    return Given(model, images(1, 3, 8, 8))


@case("G1")
def bias_computed_from_constants() -> Given:
    """The bias is computed from constants: folded."""
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) {
            b = Mul (b0, k)
            y = Conv (x, w, b)
        }""",
        w=normal(4, 3, 3, 3),
        b0=normal(4, seed=1),
        k=f32(2.5),
    )
    return Given(model, images(1, 3, 8, 8))


@case("G1")
def bias_computed_not_const() -> Given:
    """The bias is computed at run time: it stays float, the layer is quantized."""
    model = build(
        """(float[1, 3, 8, 8] x, float[4] k) => (float[1, 4, 6, 6] y) {
            b = Mul (b0, k)
            y = Conv (x, w, b)
        }""",
        w=normal(4, 3, 3, 3),
        b0=normal(4, seed=1),
    )
    feeds = feeds_for(model)
    return Given(model, feeds)


@case("G1", least=15)
def topk_nonzero_int_paths() -> Given:
    """TopK, GatherElements, NonZero: indices stay integers."""
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 5] y, int64[1, 5] indices, int64[2, N] found) {
            c = Conv (x, w)
            f = Flatten (c)
            values, indices = TopK (f, k)
            y = GatherElements <axis = 1> (f, indices)
            found = NonZero (f)
        }""",
        w=normal(4, 3, 3, 3),
        k=np.array([5]),
    )
    return Given(model, images(1, 3, 8, 8))


@case("G1", least=None)
def batchnorm_in_training_mode() -> Given:
    """BatchNormalization in training mode: not folded."""
    model = conv_bn(1, "y, m, v", ", float[8] m, float[8] v")
    return Given(model, images(1, 3, 8, 8))


@case("G1", least=30)
def batchnorm_for_inference() -> Given:
    """BatchNormalization behind a Conv: folded exactly."""
    model = conv_bn(0, "y")
    return Given(model, images(1, 3, 8, 8))


@case("G1")
def batchnorm_read_twice() -> Given:
    """The Conv before a BatchNormalization has a second reader."""
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y, float[1, 4, 6, 6] z) {
            c = Conv (x, w)
            y = BatchNormalization (c, s, s, s, s)
            z = Relu (c)
        }""",
        w=normal(4, 3, 3, 3),
        s=f32([1, 2, 0.5, 1.5]),
    )
    return Given(model, images(1, 3, 8, 8))


@case("G1")
def residual_branch_is_output() -> Given:
    """A branch of a residual sum is a graph output too."""
    model = build(
        """(float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y, float[1, 4, 8, 8] a) {
            a = Conv <pads = [1, 1, 1, 1]> (x, w1)
            r = Relu (a)
            b = Conv <pads = [1, 1, 1, 1]> (r, w2)
            s = Add (a, b)
            y = Relu (s)
        }""",
        w1=normal(4, 4, 3, 3),
        w2=normal(4, 4, 3, 3, seed=1),
    )
    return Given(model, images(1, 4, 8, 8))


@case("G1", refuse="nowhere")
def undefined_name() -> Given:
    """A node reads a name that nothing makes: an error that names both."""
    model = build("(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) { [c] y = Conv (x, nowhere) }")
    return Given(model, [])


@case("G1", refuse="n1|n2|cycl|sorted|DAG")
def cycle() -> Given:
    """Two nodes read each other: an error that names them."""
    model = build("(float[1, 4] x) => (float[1, 4] y) { [n1] y = Add (x, z) }")
    model.graph.node.append(helper.make_node("Relu", ["y"], ["z"], name="n2"))
    return Given(model, [])


@case("G1", least=100)
def nothing_to_quantize() -> Given:
    """No operator has integers: the model stays as it is."""
    model = build("(float[1, 4] x) => (float[1, 4] y) { e = Exp (x)  y = Sin (e) }")
    return Given(model, images(1, 4))


@case("G1")
def dead_branch() -> Given:
    """A Conv that nobody reads."""
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) {
            y = Conv (x, w)
            unused = Conv (x, w2)
        }""",
        w=normal(4, 3, 3, 3),
        w2=normal(4, 3, 3, 3),
    )
    return Given(model, images(1, 3, 8, 8))


@case("G1")
def unsorted_nodes() -> Given:
    """A node is listed before the one it reads: sorted."""
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) {
            c = Conv (x, w)
            y = Relu (c)
        }""",
        w=normal(4, 3, 3, 3),
    )
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(reversed(nodes))
    return Given(model, images(1, 3, 8, 8))
