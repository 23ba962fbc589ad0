"""Channels that a Pad adds, as a Concat with constants."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxq.graph.passes.padded_channels import padded_channels
from onnxq.graph.shapes import infer_shapes
from onnxq.ort.session import Session
from tests.models import build, f32, feeds_for


def rewritten(source: onnx.ModelProto) -> ir.Model:
    model = ir.from_proto(source)
    infer_shapes(model)
    padded_channels(model)
    return model


def pad(inputs: str, pads: list[int], sizes: str = "2, 3, 4", mode: str = "constant") -> onnx.ModelProto:
    free = ", ".join("bcd")
    text = f'(float[{sizes}] x) => (float[{free}] y) {{ [p] y = Pad <mode = "{mode}"> ({inputs}) }}'
    constants = {"pads": np.array(pads), "number": f32(-1.5), "axes": np.array([-2])}
    named = {name: array for name, array in constants.items() if name in inputs}
    return build(text, opset=18, **named)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "source",
    [
        pad("x, pads", [0, 0, 0, 0, 2, 0]),
        pad("x, pads, number", [0, 0, 0, 0, 2, 0]),
        pad("x, pads, number", [0, 1, 0, 0, 0, 0]),
        pad("x, pads, number", [0, 1, 0, 0, 2, 0]),
        pad("x, pads, number, axes", [0, 2]),
        pad("x, pads, , axes", [0, 1]),
    ],
)
def test_the_numbers_and_names_stay(source: onnx.ModelProto) -> None:
    model = rewritten(source)
    (concat,) = model.graph
    assert (concat.op_type, concat.name) == ("Concat", "p")
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    (feeds,) = feeds_for(source, samples=1)
    want = Session(ir.from_proto(source), optimize=False).run(feeds)["y"]
    np.testing.assert_array_equal(Session(model, optimize=False).run(feeds)["y"], want)


@pytest.mark.parametrize(
    "source",
    [
        pad("x, pads", [0, 0, 1, 0, 0, 1]),
        pad("x, pads", [1, 1, 0, 0, 0, 0]),
        pad("x, pads", [0, 0, 0, 0, 1, 1]),
        pad("x, pads", [0, 3, 0, 0, -1, 0]),
        pad("x, pads", [0, 0, 0, 0, -1, 0]),
        pad("x, pads", [0, 0, 0, 0, 0, 0]),
        pad("x, pads", [0, 0, 0, 0, 1, 0], mode="edge"),
        pad("x, pads", [0, 0, 0, 0, 1, 0], sizes="N, 3, 4"),
    ],
)
def test_what_is_left(source: onnx.ModelProto) -> None:
    (node,) = rewritten(source).graph
    assert node.op_type == "Pad"
