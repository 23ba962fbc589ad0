"""Recurrent layers train: their gradients, without biases and states too, and at about the cost of torch's own."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.models import build, normal

pytest.importorskip("torch", reason="the extra torch is not installed")

import onnx_ir as ir
import torch

from onnxq.torch.executor import Executor
from tests.torch.ops.helpers import case

torch.set_num_threads(1)

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


@pytest.mark.parametrize("direction", ["reverse", "bidirectional"])
@pytest.mark.parametrize("op", GATES)
def test_without_biases_and_states(op: str, direction: str) -> None:
    count = 2 if direction == "bidirectional" else 1
    rows = {"w": normal(count, 6 * GATES[op], 3, seed=1), "r": normal(count, 6 * GATES[op], 6, seed=2)}
    attributes = f'hidden_size = 6, direction = "{direction}", linear_before_reset = 1'
    attributes = attributes if op == "GRU" else attributes.rpartition(",")[0]
    text = f"(float[5, 2, 3] x) => (float[T, D, N, H] y) {{ y = {op} <{attributes}> (x, w, r) }}"
    case(text, {"x": normal(5, 2, 3)}, opset=18, **rows)


def executor(op: str, size: int, steps: int, batch: int, reset: int = 1) -> Executor:
    rows = {"w": normal(1, size * GATES[op], size, seed=1) * 0.1, "r": normal(1, size * GATES[op], size, seed=2) * 0.1}
    biases = {"b": normal(1, 2 * size * GATES[op], seed=3)}
    more = f", linear_before_reset = {reset}" if op == "GRU" else ""
    text = f"""(float[{steps}, {batch}, {size}] x) => (float[T, D, N, H] y) {{
        y = {op} <hidden_size = {size}{more}> (x, w, r, b)
    }}"""
    return Executor(ir.serde.deserialize_model(build(text, opset=18, ir_version=8, domains=None, **rows, **biases)))


@pytest.mark.parametrize(("op", "reset"), [("LSTM", 1), ("GRU", 1), ("GRU", 0), ("RNN", 1)])
def test_gradients_are_those_of_small_steps(op: str, reset: int) -> None:
    made = executor(op, 3, 4, 2, reset)
    x = torch.randn(4, 2, 3, generator=torch.Generator().manual_seed(0))
    parameters = list(made.parameters.values())
    for p in parameters:
        p.requires_grad_()
    made.run({"x": x})["y"].square().sum().backward()
    for p in parameters:
        assert p.grad is not None
        for k in range(0, p.numel(), 5):
            found = []
            with torch.no_grad():
                for step in (1e-2, -2e-2):
                    p.view(-1)[k] += step
                    found.append(float(made.run({"x": x})["y"].double().square().sum()))
                p.view(-1)[k] += 1e-2
            assert float(p.grad.view(-1)[k]) == pytest.approx((found[0] - found[1]) / 2e-2, rel=0.02, abs=5e-3)


def seconds(run: Callable[[], torch.Tensor]) -> float:
    found = []
    for _ in range(5):
        began = time.process_time()
        run().square().sum().backward()
        found.append(time.process_time() - began)
    return min(found)


def test_a_step_costs_about_what_one_of_torch_does() -> None:
    made, layer = executor("LSTM", 400, 100, 8), torch.nn.LSTM(400, 400)
    for p in made.parameters.values():
        p.requires_grad_()
    x = torch.randn(100, 8, 400)
    assert seconds(lambda: made.run({"x": x})["y"]) < 3 * seconds(lambda: layer(x)[0])
