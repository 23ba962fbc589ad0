"""onnxruntime multiplies with weights as they are stored whatever stands before and behind the products."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxq.measuring.metrics import sqnr
from onnxq.weight_only import quantize_weights
from tests.installed import needs
from tests.models import build, normal
from tests.running import optimized
from tests.weight_only.layers import LOSS, run, save

_BOUNDED = {
    "r = Relu (m)": {"Max": 1},
    "r = Clip (m, low, high)": {"Max": 1, "Min": 1},
    "r = Clip (m, , high)": {"Min": 1},
    "r = Clip (m, low)": {"Max": 1},
}


def _operators(path: Path) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(path).graph.node)


def _fused(path: Path) -> Counter[str]:
    """Operators that are left when onnxruntime has optimized a model."""
    return Counter(node.op_type for node in optimized(path, path.parent).graph.node)


def _model(text: str) -> onnx.ModelProto:
    graph = f"(float[N, 64] x) => (float[N, 32] y) {{ m = MatMul (x, a) \n {text} }}"
    low, high = np.array(-0.3, np.float32), np.array(0.4, np.float32)
    return build(graph, a=normal(64, 96), b=normal(96, 32, seed=1), low=low, high=high)


@pytest.mark.parametrize("bits", [4, pytest.param(8, marks=needs("onnxruntime", "1.26"))])
@pytest.mark.parametrize(("text", "written"), _BOUNDED.items())
def test_a_bound_between_two_products(text: str, written: dict[str, int], bits: int, tmp_path: Path) -> None:
    """The weight of the first was unpacked at each run, 17 times as slow with one row and 4 bits."""
    source, out, other = (tmp_path / name for name in ("m.onnx", "q.onnx", "other.onnx"))
    save(_model(f"{text} \n y = MatMul (r, b)"), source)
    quantize_weights(source, out, bits=bits)
    assert _operators(out) == {"DequantizeLinear": 2, "MatMul": 2, **written}
    assert _fused(out) == {"MatMulNBits": 2, **written}
    assert "r" in {name for node in onnx.load(out).graph.node for name in node.output}
    if bits == 8:  # the numbers of 4 bits differ between the formats
        quantize_weights(source, other, bits=bits, format="matmulnbits", accuracy_level=0)
        feeds = {"x": normal(5, 64, seed=2, scale=1.0)}
        np.testing.assert_allclose(run(out, feeds)["y"], run(other, feeds)["y"], rtol=1e-4, atol=1e-4)


def test_a_bound_stays_where_nothing_hinders(tmp_path: Path) -> None:
    """The Relu is written otherwise only where it is read once, and never with MatMulNBits."""
    source, out = tmp_path / "m.onnx", tmp_path / "q.onnx"
    save(_model("r = Relu (m) \n s = Mul (r, r) \n y = MatMul (s, b)"), source)
    quantize_weights(source, out)
    assert "Relu" in _operators(out)
    assert _fused(out)["MatMulNBits"] == 2
    save(_model("r = Relu (m) \n y = MatMul (r, b)"), source)
    quantize_weights(source, out, format="matmulnbits")
    assert "Relu" in _operators(out)


@pytest.mark.parametrize("tokens", ["N", "N, S", "2, 3"])
@pytest.mark.parametrize("bits", [4, pytest.param(8, marks=needs("onnxruntime", "1.26"))])
def test_rows_of_a_table_that_are_multiplied(bits: int, tokens: str, tmp_path: Path) -> None:
    """The weights were unpacked at each run, for the rows come from a DequantizeLinear too."""
    graph = f"""(int64[{tokens}] i) => (float[{tokens}, 48] y, float[{tokens}, 32] z) {{
        e = Gather (t, i)
        y = MatMul (e, a)
        z = MatMul (e, b)
    }}"""
    source, out = tmp_path / "m.onnx", tmp_path / "q.onnx"
    proto = build(graph, t=normal(50, 64), a=normal(64, 48, seed=1), b=normal(64, 32, seed=2))
    save(proto, source)
    quantize_weights(source, out, bits=bits)
    assert _operators(out) == {"Gather": 2, "DequantizeLinear": 3, "Reshape": 1, "MatMul": 2}
    assert _fused(out) == {"Gather": 2, "DequantizeLinear": 1, "Reshape": 1, "MatMulNBits": 2}
    feeds = {"i": np.arange(6).reshape((2, 3) if "," in tokens else 6)}
    expected = run(source, feeds)
    for name, values in run(out, feeds, optimize=True).items():
        assert sqnr(expected[name], values) > LOSS[bits]
