"""Convolutions that share a bias."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.graph.passes.own_biases import own_biases
from tests.contract import infer
from tests.models import build, feeds_for, normal


def test_each_convolution_has_its_own() -> None:
    source = build(
        """(float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) {
            [a] a = Conv <pads = [1, 1, 1, 1]> (x, w, b)
            r = Relu (a)
            [b] c = Conv <pads = [1, 1, 1, 1]> (r, w, b)
            [plain] d = Conv <pads = [1, 1, 1, 1]> (c, w)
            y = Add (d, d)
        }""",
        w=normal(4, 4, 3, 3),
        b=normal(4, seed=1),
    )
    model = ir.from_proto(source)
    (note,) = own_biases(model)
    assert "1 biases" in str(note)
    read = [node.inputs[2].name for node in model.graph if len(node.inputs) == 3 and node.inputs[2] is not None]
    assert read[0] == "b" and len(set(read)) == 2
    weights = {node.inputs[1].name for node in model.graph if node.op_type == "Conv" and node.inputs[1] is not None}
    assert weights == {"w"}
    feeds = feeds_for(source)[0]
    given, made = (infer(m, [feeds], optimize=False)["y"][0] for m in (source, ir.to_proto(model)))
    np.testing.assert_array_equal(given, made)
    assert own_biases(model) == []
