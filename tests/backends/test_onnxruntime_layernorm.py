"""A layer normalization that onnxruntime does not find itself is one operator in the result."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxq
from tests.graph.helpers import build, f32, i64, random

KERAS = (
    "m = GlobalAveragePool(x) \n o = Neg(m) \n d = Sub(x, m) \n q = Mul(d, d) \n v = GlobalAveragePool(q) \n "
    "e = Add(v, eps) \n r = Sqrt(e) \n i = Reciprocal(r) \n s = Mul(i, gamma) \n xs = Mul(x, s) \n "
    "ms = Mul(o, s) \n b = Add(ms, beta) \n t = Add(xs, b)"
)
DENSE = (
    "d{0} = Shape ({1}) \n h{0} = Cast <to = 6> (d{0}) \n g{0} = Gather (h{0}, front) \n "
    "c{0} = Concat <axis = 0> (g{0}, width) \n t{0} = Cast <to = 7> (c{0}) \n a{0} = Reshape ({1}, rows) \n "
    "p{0} = MatMul (a{0}, w{0}) \n {2} = Reshape (p{0}, t{0})"
)


@pytest.mark.parametrize("opset", [15, 18])
def test_as_keras_writes_a_transformer(opset: int, tmp_path: Path) -> None:
    """Behind dense layers, whose shape the file computes with a free batch."""
    proto = build(
        f"g (float[N,64,96] u) => (float[N,64,96] y) {{ {DENSE.format(1, 'u', 'x')} \n {KERAS} \n "
        f"{DENSE.format(2, 't', 'y')} }}",
        opset=opset,
        eps=f32(1e-3),
        gamma=random(96, seed=1),
        beta=random(96, seed=2),
        front=i64([0, 1]),
        width=np.array([96], np.int32),
        rows=i64([-1, 96]),
        w1=0.1 * random(96, 96, seed=3),
        w2=0.1 * random(96, 96, seed=4),
    )
    data = [{"u": random(1, 64, 96, seed=seed)} for seed in range(24)]
    path = tmp_path / "quantized.onnx"
    result = onnxq.quantize(proto, data, output=path)
    found = [node.op_type for node in onnx.load(path).graph.node]
    assert found.count("LayerNormalization") == 1
    assert not {"GlobalAveragePool", "Sqrt", "Shape", "Concat"} & set(found)
    assert found.count("MatMul") == 2 and len(result.plan.quantized) >= 2
    assert result.verification is not None and result.verification.worst is not None
    assert result.verification.worst[1].sqnr > 20
