from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.calibration.share_out import share_out, tensor_bytes
from onnxq.ort.session import Session

TEXT = """
    <ir_version: 8, opset_import: ["" : 17]>
    agraph (float[N, 3] x, bool c) => (float[N, 3] y, int64[2, M] where)
    <float[N, 3] a, float[5] fixed, float[] scalar>
    {
        a = Neg(x)
        where = NonZero(a)
        picked = GatherND(a, t)
        t = Transpose(where)
        fixed = Constant <value = float[5] {1.0, 1.0, 1.0, 1.0, 1.0}> ()
        scalar = ReduceSum <keepdims = 0> (a)
        y = Relu(a)
    }""".replace(
    "        picked = GatherND(a, t)\n        t = Transpose(where)\n",
    "        t = Transpose(where)\n        picked = GatherND(a, t)\n",
)


def test_share_out() -> None:
    names = ["a", "b", "c", "d"]
    sizes = {"a": 4, "b": 4, "c": 9, "d": 1}
    assert share_out(names, sizes, 100) == [names]
    assert share_out(names, sizes, 8) == [["a", "b"], ["c"], ["d"]]
    assert share_out(names, sizes, 1) == [["a"], ["b"], ["c"], ["d"]]
    assert share_out(names, {}, 1) == [names] and share_out([], {}, 1) == [[]]


def test_sizes_from_shapes_and_from_a_run() -> None:
    model = ir.from_onnx_text(TEXT)
    for node in model.graph:
        if node.outputs[0].name == "picked":
            node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    x = np.array([[1.0, 0.0, 2.0], [0.0, 0.0, 3.0]], np.float32)
    sizes = tensor_bytes(model, ["x", "a", "fixed", "scalar", "picked"], {"x": x, "c": np.asarray(True)})
    assert sizes == {"x": 24, "a": 24, "fixed": 20, "scalar": 4, "picked": 12}


def test_sizes_where_onnxruntime_breaks_what_is_left() -> None:
    """Without Hardmax, Pad goes into the pool, whose pads are then larger than its window."""
    model = ir.from_onnx_text("""
    <ir_version: 8, opset_import: ["" : 18]>
    agraph (float[1, 1, 6, N] x) => (float[1, 1, H, W] y, float[1, 1, A, B] most)
    <int64[8] pads = {0, 0, 0, 0, 0, 0, 2, 1}, float zero = {0}>
    {
        padded = Pad (x, pads, zero)
        y = AveragePool <kernel_shape = [2, 1]> (padded)
        most = Hardmax (padded)
    }""")
    x = np.ones((1, 1, 6, 4), np.float32)
    Session(model)
    assert tensor_bytes(model, ["y"], {"x": x}) == {"y": 4 * 7 * 5}
