"""GELU between convolutions: one operator in front of one quantizer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxq
from onnxq import Options
from tests.backends.test_onnxruntime import gated, optimized
from tests.models import build, images, normal, verified_sqnr

ERF = "[div] d = Div (a, root)\n e = Erf (d)\n o = Add (e, one)\n m = Mul (a, o)\n g = Mul (m, half)"


def opset(path: Path) -> int:
    return next(int(i.version) for i in onnx.load(path).opset_import if i.domain == "")


def test_between_convolutions_it_has_one_kernel(tmp_path: Path) -> None:
    """As a chain each of its two readers would have a DequantizeLinear, and onnxruntime would find no Gelu."""
    path = tmp_path / "q.onnx"
    q = onnxq.quantize(gated(ERF), images(1, 96, 28, 28), output=path)
    ops = optimized(path)
    assert ops.count("QLinearConv") == 2 and ops.count("Gelu") == 1 and ops.count("DequantizeLinear") == 2
    assert not {"Erf", "Div", "Mul"} & set(ops)
    assert verified_sqnr(q) > 30
    assert opset(path) == 20


@pytest.mark.parametrize("named", ["div", "Erf", "m"])
def test_what_names_the_chain_names_the_operator(named: str) -> None:
    plan = onnxq.plan(gated(ERF), options=Options(exclude=(named,)))
    assert "first" in plan.quantized and "excluded" in " ".join(kept.reason for kept in plan.kept_float)


def test_an_opset_that_is_asked_for_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "q.onnx"
    onnxq.quantize(gated(ERF), images(1, 96, 28, 28), output=path, options=Options(opset=17))
    assert opset(path) == 17
    assert "Gelu" not in {node.op_type for node in onnx.load(path).graph.node}


def test_behind_a_product_of_matrices_nothing_changes(tmp_path: Path) -> None:
    """MatMulIntegerToFloat leaves floats: the chain has one input there, and onnxruntime its kernel."""
    model = build(
        f"""(float[1, 64, 96] x) => (float[1, 64, 96] y) {{
            p = MatMul (x, w1)
            a = Add (p, b1)
            {ERF}
            y = MatMul (g, w2)
        }}""",
        w1=normal(96, 96, scale=0.1),
        w2=normal(96, 96, scale=0.1, seed=1),
        b1=normal(96, seed=2),
        half=np.float32(0.5),
        one=np.float32(1),
        root=np.float32(np.sqrt(2)),
    )
    path = tmp_path / "q.onnx"
    onnxq.quantize(model, images(1, 64, 96), output=path)
    assert opset(path) == 17
    assert {"Gelu", "BiasGelu"} & set(optimized(path))
