"""Transposes between Reshapes, with the axes that they keep next to each other merged."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxq.graph.passes.merge_axes import merge_axes
from onnxq.graph.shapes import infer_shapes
from onnxq.ort.session import Session
from tests.models import build, feeds_for


def moved(given: str, between: list[int], perm: list[int], behind: list[int], rest: str = "") -> onnx.ModelProto:
    return build(
        f"""(float[{given}] x) => (float[{", ".join("?" * len(behind))}] y{rest}) {{
            a = Reshape (x, to)
            [t] b = Transpose <perm = {perm}> (a)
            c = Reshape (b, back)
            y = Relu (c)
        }}""",
        to=np.array(between),
        back=np.array(behind),
    )


def merged(source: onnx.ModelProto, most: int = 4) -> ir.Model:
    model = ir.from_proto(source)
    infer_shapes(model)
    merge_axes(model, most)
    return model


def perm_of(model: ir.Model) -> list[int]:
    (node,) = (node for node in model.graph if node.name == "t")
    return list(node.attributes["perm"].as_ints())


@pytest.mark.parametrize(
    ("given", "between", "perm", "behind", "left"),
    [
        ("2, 6, 7, 8", [2, 2, 3, 7, 8], [0, 2, 1, 3, 4], [2, 6, 7, 8], [0, 2, 1, 3]),  # a shuffle of channels
        ("2, 6, 7, 8", [0, 2, 3, 7, 8], [0, 2, 1, 3, 4], [0, 6, -1, 8], [0, 2, 1, 3]),
        ("N, 6, 7, 8", [0, 2, 3, 7, 8], [0, 2, 1, 3, 4], [0, 6, 7, 8], [0, 2, 1, 3]),
        ("N, 6, 7, 8", [-1, 2, 3, 7, 8], [3, 4, 2, 0, 1], [56, 3, -1], [2, 1, 0]),
        ("2, 6, 7, 8", [2, 2, 3, 7, 8], [3, 4, 0, 1, 2], [56, 12], [1, 0]),
        ("2, 6, 7, 8", [2, 2, 3, 7, 8], [0, 1, 2, 3, 4], [84, 8], [0]),
        ("2, 6, 4, 8", [2, 6, 2, 2, 2, 4], [0, 1, 3, 5, 2, 4], [2, 24, 2, 4], [0, 2, 4, 1, 3]),
    ],
)
def test_axes_kept_together_are_one(
    given: str, between: list[int], perm: list[int], behind: list[int], left: list[int]
) -> None:
    source = moved(given, between, perm, behind)
    model = merged(source)
    assert perm_of(model) == left
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    for feed in feeds_for(source, samples=2):
        feeds = {name: np.concatenate([array] * 3) if "N" in given else array for name, array in feed.items()}
        want = Session(ir.from_proto(source), optimize=False).run(feeds)["y"]
        np.testing.assert_array_equal(Session(model, optimize=False).run(feeds)["y"], want)


@pytest.mark.parametrize(
    "source",
    [
        moved("2, 6, 56", [2, 2, 3, 56], [0, 2, 1, 3], [2, 6, 56]),  # few enough dimensions
        moved("2, 6, 7, 8", [2, 2, 3, 7, 8], [0, 4, 2, 1, 3], [16, 42]),  # none stay together
        moved("2, 6, 7, 8", [2, 2, 3, 7, 8], [0, 2, 1, 3, 4], [2, 6, 7, 8], ", float[?, ?, ?, ?, ?] a"),
        moved("2, 6, 7, 8", [2, 2, 3, 7, 8], [0, 2, 1, 3, 4], [2, 6, 7, 8], ", float[?, ?, ?, ?, ?] b"),
        moved("0, 6, 7, 8", [0, 2, 3, 7, 8], [0, 2, 1, 3, 4], [0, 6, 7, 8]),  # no elements
        moved("N, 6, H, 8", [0, 2, 3, -1, 8], [0, 2, 1, 3, 4], [0, 6, -1, 8]),  # two sizes not known
    ],
)
def test_what_is_left(source: onnx.ModelProto) -> None:
    assert ir.to_proto(merged(source)).graph.node == ir.to_proto(ir.from_proto(source)).graph.node
