"""The share of a model's work that is quantized."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

from onnxq.calibration.statistics import KeptSample, Statistics
from onnxq.plan import Kept, Plan
from onnxq.searching.work import quantized_share
from tests.models import build, normal


def share(text: str, kept: set[str], shape: tuple[int, ...] = (), **constants: NDArray[Any]) -> float:
    """Of a model whose nodes are all quantized but for some."""
    model = ir.from_proto(build(text, opset=17, ir_version=8, domains=None, **constants))
    nodes = {node.name or "": node.op_type for node in model.graph}
    quantized = {name: op for name, op in nodes.items() if name not in kept}
    plan = Plan("", (), quantized, kept_float=tuple(Kept(name, nodes[name], "") for name in sorted(kept)))
    samples = [KeptSample(0, {"x": np.zeros(shape, np.float32)}, {})] if shape else []
    return quantized_share(model, plan, Statistics("", kept=samples))


LAYERS = """(float[N, 8] x) => (float[N, 4] y) {
    [one] a = MatMul (x, u)
    [relu] b = Relu (a)
    [two] y = MatMul (b, v)
}"""


def test_it_counts_multiply_accumulates_and_elements() -> None:
    weights = {"u": normal(8, 16), "v": normal(16, 4)}
    assert share(LAYERS, set(), (2, 8), **weights) == 1.0
    one, relu, two = 2 * 16 * (8 + 1), 2 * 16, 2 * 4 * (16 + 1)
    assert share(LAYERS, {"two"}, (2, 8), **weights) == pytest.approx((one + relu) / (one + relu + two))
    assert share(LAYERS, {"one", "relu", "two"}, (2, 8), **weights) == 0.0


@pytest.mark.parametrize("sizes", ["float[1, 6, 8] x", "float[1, S, 8] x"])
def test_products_of_activations_count(sizes: str) -> None:
    text = f"""({sizes}) => (float[1, S, 8] y) {{
        [turn] t = Transpose <perm = [0, 2, 1]> (x)
        [scores] s = MatMul (x, t)
        [mix] y = MatMul (s, x)
    }}"""
    turn, scores, mix = 48, 6 * 6 * (8 + 1), 6 * 8 * (6 + 1)
    assert share(text, {"mix"}, (1, 6, 8)) == pytest.approx((turn + scores) / (turn + scores + mix))


def test_nothing_to_do_is_nothing_quantized() -> None:
    assert share("(float[2] x) => (float[2] y) { [i] y = Identity (x) }", set()) == 1.0
    model = ir.from_proto(build("(float[2] x) => (float[2] y) { y = Identity (x) }"))
    assert quantized_share(model, Plan("", (), {}), Statistics("")) == 0.0
