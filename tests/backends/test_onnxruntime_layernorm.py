"""A layer normalization that onnxruntime does not find itself is one operator in the result."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxq
from tests.backends.test_onnxruntime import optimized
from tests.graph.helpers import build, random
from tests.models import f32, i64, verified_sqnr

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
    assert verified_sqnr(result) > 20


CHAIN = (
    "m = ReduceMean<axes = [-1]>({0}) \n d = Sub({0}, m) \n q = Pow(d, two) \n v = ReduceMean<axes = [-1]>(q) \n "
    "e = Add(v, eps) \n r = Sqrt(e) \n n = Div(d, r) \n a = Mul(n, gamma) \n t = Add(a, beta)"
)
ONE = "t = LayerNormalization({0}, gamma, beta)"


def normalized(body: str, path: Path, opset: int, outputs: str = "float[1,64,96] y") -> list[str]:
    """Operators that onnxruntime makes of a body of x, and of two matrices, quantized."""
    proto = build(
        f"g (float[1,64,96] x) => ({outputs}) {{ p = MatMul(x, w1) \n {body} \n y = MatMul(t, w2) }}",
        opset=opset,
        two=f32(2),
        eps=f32(1e-5),
        gamma=1 + 0.1 * random(96, seed=1),
        beta=random(96, seed=2),
        w1=0.1 * random(96, 96, seed=3),
        w2=0.1 * random(96, 96, seed=4),
        shape=i64([1, 96, 64]),
    )
    result = onnxq.quantize(proto, [{"x": random(1, 64, 96, seed=seed)} for seed in range(24)], output=path)
    assert verified_sqnr(result) > 30
    return optimized(path)


@pytest.mark.parametrize(("norm", "opset"), [(ONE, 17), (CHAIN, 14)])
def test_what_is_added_in_front_is_no_part_of_a_slow_kernel(norm: str, opset: int, tmp_path: Path) -> None:
    found = normalized(f"s = Add(p, x) \n {norm.format('s')}", tmp_path / "q.onnx", opset)
    assert "LayerNormalization" in found and "SkipLayerNormalization" not in found


@pytest.mark.parametrize(
    ("body", "outputs"),
    [
        (f"s = Add(p, x) \n z = Neg(s) \n {ONE.format('s')}", "float[1,64,96] y, float[1,64,96] z"),
        (f"s = Add(p, x) \n {ONE.format('s')}", "float[1,64,96] y, float[1,64,96] s"),
    ],
)
def test_a_sum_that_others_read_stays_an_add(body: str, outputs: str, tmp_path: Path) -> None:
    path = tmp_path / "q.onnx"
    assert "LayerNormalization" in normalized(body, path, 17, outputs)
    assert "Sum" not in {node.op_type for node in onnx.load(path).graph.node}


def test_behind_a_transpose_it_is_one_operator(tmp_path: Path) -> None:
    """onnxruntime moves the Transpose through a part of the chain, and does not know the rest for a normalization."""
    path = tmp_path / "q.onnx"
    turned = "c = Reshape(p, shape) \n s = Transpose<perm = [0, 2, 1]>(c)"
    found = normalized(f"{turned} \n {CHAIN.format('s')}", path, 14)
    assert "LayerNormalization" in found and not {"ReduceMean", "SimplifiedLayerNormalization"} & set(found)
