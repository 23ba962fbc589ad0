"""Patterns match node names, tensor names and op types; one that matches nothing is an error with the nearest names."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from onnx import parser

from onnxq.errors import OptionError
from onnxq.options.patterns import Names, match, names_of

NAMES = Names(
    nodes={"/a/Conv": "Conv", "/a/Relu": "Relu", "/b/Conv": "Conv", "q[0]": "my.domain::Conv"},
    tensors=["x", "/a/w", "/a/y", "t[1]", "out"],
)


def one(pattern: str) -> tuple[set[str], set[str]]:
    found = match([pattern], NAMES)[0]
    return set(found.nodes), set(found.tensors)


@pytest.mark.parametrize(
    ("pattern", "nodes", "tensors"),
    [
        ("Conv", {"/a/Conv", "/b/Conv", "q[0]"}, set()),
        ("my.domain::Conv", {"q[0]"}, set()),
        ("/a/Conv", {"/a/Conv"}, set()),
        ("/a/*", {"/a/Conv", "/a/Relu"}, {"/a/w", "/a/y"}),
        ("*/Conv", {"/a/Conv", "/b/Conv"}, set()),
        ("q[0]", {"q[0]"}, set()),  # as it stands, not a set of characters
        ("t[1]", set(), {"t[1]"}),
        ("?", set(), {"x"}),
        ("out", set(), {"out"}),
        ("node:/a/*", {"/a/Conv", "/a/Relu"}, set()),
        ("tensor:/a/*", set(), {"/a/w", "/a/y"}),
        ("tensor:t[1]", set(), {"t[1]"}),
    ],
)
def test_matches(pattern: str, nodes: set[str], tensors: set[str]) -> None:
    assert one(pattern) == (nodes, tensors)


@pytest.mark.parametrize(
    ("pattern", "nearest"), [("conv", "'Conv'"), ("/a/Cnov", "'/a/Conv'"), ("outt", "'out'"), ("Rleu", "'Relu'")]
)
def test_no_match_names_the_nearest(pattern: str, nearest: str) -> None:
    with pytest.raises(OptionError, match="exclude") as caught:
        match(["Conv", pattern], NAMES, option="exclude")
    assert repr(pattern) in str(caught.value)
    assert nearest in str(caught.value)


def test_names_of_a_model_include_subgraphs_and_domains() -> None:
    model = ir.from_proto(
        parser.parse_model(
            """
            <ir_version: 8, opset_import: ["" : 17, "my" : 1]>
            g (bool c, float[2] x) => (float[2] y) <float[2] w = {1, 2}> {
                [pick] y = If (c) <
                    then_branch = t () => (float[2] a) { [inner] a = Add (x, w) },
                    else_branch = e () => (float[2] b) { [custom] b = my.Twice (x) }
                >
            }
            """
        )
    )
    names = names_of(model)
    assert names.nodes == {"pick": "If", "inner": "Add", "custom": "my::Twice"}
    assert set(names.tensors) == {"c", "x", "w", "y", "a", "b"}
    found = match(["a"], names)[0]
    by_name = {node.name: node for node in model.graph.all_nodes()}
    assert found.node(by_name["inner"])
    assert not found.node(by_name["custom"])


def test_a_node_is_told_from_a_tensor_and_from_an_operator_of_its_name() -> None:
    names = Names(nodes={"Conv": "Conv", "b": "Conv", "node:c": "Relu"}, tensors=["b", "x"])
    found = [(set(m.nodes), set(m.tensors)) for m in match(["Conv", "node:Conv", "b", "node:b", "tensor:b"], names)]
    assert found == [({"Conv", "b"}, set()), ({"Conv"}, set()), ({"b"}, {"b"}), ({"b"}, set()), (set(), {"b"})]
    assert match(["node:c"], names)[0].nodes == {"node:c"}
    for pattern in ("node:x", "node:", "tensor:Conv", "scale:b"):
        with pytest.raises(OptionError, match="matches no node name"):
            match([pattern], names)
