"""A small float model and a quantized one made from it by hand, for tests of what only reads models."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper, parser

__all__ = ["BATCH", "SCALE", "data", "float_model", "quantized_model", "renamed"]

SCALE = 1 / 16
"""Scale of ``h`` in the quantized model; its zero point is 0."""
BATCH = 4

_WEIGHTS = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)

_FLOAT = """
<ir_version: 8, opset_import: ["" : 17], producer_name: "test">
g (float[N, 3] x) => (float[N, 4] y, int64[N] top) {
    [mm] h = MatMul (x, w)
    [act] r = Relu (h)
    [out] y = Sigmoid (r)
    [arg] top = ArgMax <axis = 1, keepdims = 0> (y)
}
"""

_QUANTIZED = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[N, 3] x) => (float[N, 4] y, int64[N] top) {
    [w_dq] w_d = DequantizeLinear <axis = 1> (w_q, w_s, w_z)
    [mm] h = MatMul (x, w_d)
    [h_q] h_quantized = QuantizeLinear (h, h_s, h_z)
    [h_dq] h_dequantized = DequantizeLinear (h_quantized, h_s, h_z)
    [act] r = Relu (h_dequantized)
    [out] y = Sigmoid (r)
    [arg] top = ArgMax <axis = 1, keepdims = 0> (y)
}
"""


def _with(text: str, **constants: np.ndarray) -> onnx.ModelProto:
    model = parser.parse_model(text)
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items())
    onnx.checker.check_model(model, full_check=True)
    return model


def float_model() -> onnx.ModelProto:
    """x → MatMul → h → Relu → r → Sigmoid → y, and its ArgMax ``top``."""
    return _with(_FLOAT, w=_WEIGHTS)


def quantized_model() -> onnx.ModelProto:
    """The same with int8 weights per column and ``h`` in int8 with the scale 1/16."""
    scale = (np.abs(_WEIGHTS).max(axis=0) / 127).astype(np.float32)
    return _with(
        _QUANTIZED,
        w_q=np.rint(_WEIGHTS / scale).astype(np.int8),
        w_s=scale,
        w_z=np.zeros(4, np.int8),
        h_s=np.float32(SCALE),
        h_z=np.int8(0),
    )


def data(samples: int = 6) -> list[dict[str, np.ndarray]]:
    """Feeds of 4 rows each."""
    rng = np.random.default_rng(1)
    return [{"x": rng.normal(size=(BATCH, 3)).astype(np.float32)} for _ in range(samples)]


def renamed(model: onnx.ModelProto, old: str, new: str) -> onnx.ModelProto:
    """A copy with one tensor renamed."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for node in copy.graph.node:
        node.input[:] = [new if name == old else name for name in node.input]
        node.output[:] = [new if name == old else name for name in node.output]
    for value in (*copy.graph.input, *copy.graph.output):
        value.name = new if value.name == old else value.name
    return helper.make_model(copy.graph, opset_imports=copy.opset_import, ir_version=8)
