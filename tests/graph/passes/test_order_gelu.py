"""Every GELU that is written as a chain ends in an order that onnxruntime fuses."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import pytest

from onnxq.graph.files.save import to_proto
from onnxq.graph.note import Note
from onnxq.graph.passes.order_gelu import order_gelu
from onnxq.graph.shapes import infer_shapes
from tests.graph.helpers import apply, build, ops, random, twice
from tests.graph.recognition.test_groups import ACTIVATIONS, CONSTANTS
from tests.running import optimized

FEEDS = {"u": 3 * random(2, 3, 8)}
HALVED_SUM = "a = Div(x, root2) \n e = Erf(a) \n p = Add(e, one) \n h = Mul(half, p) \n t = Mul(x, h)"
"""As the exporter of PyTorch 2.13 writes it."""
FUSED = {"Gelu", "FastGelu", "QuickGelu"}


def order(model: ir.Model) -> list[Note]:
    infer_shapes(model)
    return order_gelu(model)


def ordered(body: str, opset: int = 17) -> tuple[ir.Model, list[Note]]:
    text = f"g (float[n,3,8] u) => (float[n,3,8] y) {{ x = Neg(u) \n {body} \n y = Abs(t) }}"
    return apply(order, build(text, opset=opset, **CONSTANTS), FEEDS, tolerance=2e-6)


def fused_by_onnxruntime(model: ir.Model, folder: Path) -> set[str]:
    return FUSED & {node.op_type for node in optimized(to_proto(model), folder).graph.node}


@pytest.mark.parametrize("body", [*ACTIVATIONS["gelu"], HALVED_SUM])
def test_onnxruntime_fuses_the_chain(body: str, tmp_path: Path) -> None:
    model, _ = ordered(body)
    assert fused_by_onnxruntime(model, tmp_path)
    assert "Gelu" not in ops(model)


@pytest.mark.parametrize("index", [0, 4, 7])
def test_what_it_fuses_stays_as_it_is(index: int) -> None:
    body = ACTIVATIONS["gelu"][index]
    model, notes = ordered(body)
    assert notes == []
    assert len(ops(model)) == body.count("=") + 2


def test_one_behind_another() -> None:
    model, notes = ordered(twice(HALVED_SUM))
    assert [note.message for note in notes] == ["2 chains in the order that is fused"]
    assert ops(model).count("Erf") == 2
