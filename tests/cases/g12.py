"""Group 12: names of nodes and tensors."""

from __future__ import annotations

import onnx

from tests.cases.case import Given, case
from tests.models import build, images, normal, renamed


def chain() -> onnx.ModelProto:
    return build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 4, 4] y) {
            [c1] a = Conv (x, w1, b1)
            [r1] r = Relu (a)
            [c2] y = Conv (r, w2)
        }""",
        w1=normal(4, 3, 3, 3),
        b1=normal(4, seed=1),
        w2=normal(4, 4, 3, 3, seed=2),
    )


@case("G12")
def dup_suffix_collision() -> Given:
    """A shared bias, and tensors already named as its copies would be."""
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y, float[1, 4, 6, 6] b_2) {
            b0 = Conv (x, w1, b)
            b_1 = Conv (x, w2, b)
            b_quantized = Relu (b0)
            b_2 = Relu (b_1)
            y = Add (b_quantized, b_2)
        }""",
        w1=normal(4, 3, 3, 3),
        w2=normal(4, 3, 3, 3, seed=1, scale=0.02),
        b=normal(4, seed=2),
    )
    return Given(model, images(1, 3, 8, 8))


@case("G12")
def empty_node_names() -> Given:
    """Nodes without names."""
    model = chain()
    for node in model.graph.node:
        node.name = ""
    return Given(model, images(1, 3, 8, 8))


@case("G12")
def one_name_for_node_and_output() -> Given:
    """One string names a node, a tensor and an output."""
    model = renamed(chain(), {"a": "c1", "y": "c2"})
    return Given(model, images(1, 3, 8, 8))


@case("G12")
def quantizer_names_taken() -> Given:
    """Nodes are named as quantizers would be."""
    model = chain()
    for node, name in zip(model.graph.node, ("x_QuantizeLinear", "x_DequantizeLinear", "QuantizeLinear"), strict=True):
        node.name = name
    return Given(model, images(1, 3, 8, 8))


@case("G12", refuse=r"\ba\b")
def two_makers() -> Given:
    """Two nodes make one name: an error that names it."""
    model = renamed(chain(), {"r": "a"})
    return Given(model, images(1, 3, 8, 8))


@case("G12")
def long_names() -> Given:
    """A name of 3000 letters."""
    name = "block/" * 500
    model = renamed(chain(), {"a": name})
    return Given(model, images(1, 3, 8, 8))


WEIRD = ["größe 1", "a b\tc", "/layer/0/..//conv", 'it\'s "quoted"', "層::重み", "x:0", "%s{}", "a\\b", "..", "*?[x]"]


@case("G12")
def weird_names(name: str = "größe /0/..//層::'a' \"b\" %s{}") -> Given:
    """Spaces, slashes, quotes and letters of other alphabets in all names: kept."""
    model = renamed(chain(), {"x": name, "w1": f"{name} w", "a": f"{name} a", "y": f"{name} y"})
    model.graph.node[0].name = name
    return Given(model, [{name: feed["x"]} for feed in images(1, 3, 8, 8)])


@case("G12")
def tensor_names_taken(taken: str = "x_quantized") -> Given:
    """A tensor is named as the quantized input would be."""
    return Given(renamed(chain(), {"r": taken}), images(1, 3, 8, 8))
