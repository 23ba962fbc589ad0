"""Recurrent layers train: their gradients, without biases and states too, and at about the cost of torch's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.models import build, normal

pytest.importorskip("torch", reason="the extra torch is not installed")

import onnx_ir as ir
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from onnxq.torch.executor import Executor
from tests.torch.ops.helpers import case

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


class Counted(TorchDispatchMode):
    """Counts the operators of torch that run, those of gradients too."""

    count: int = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def operators(run: Callable[[], torch.Tensor]) -> int:
    counted = Counted()
    with counted:
        run().square().sum().backward()
    return counted.count


@pytest.mark.parametrize(("op", "layer"), [("LSTM", torch.nn.LSTM), ("GRU", torch.nn.GRU), ("RNN", torch.nn.RNN)])
def test_a_step_costs_what_one_of_torch_does(op: str, layer: Callable[[int, int], torch.nn.Module]) -> None:
    more = []
    for steps in (5, 25):
        made, of_torch = executor(op, 6, steps, 2), layer(6, 6)
        for p in made.parameters.values():
            p.requires_grad_()
        x = torch.zeros(steps, 2, 6)
        more.append(operators(lambda: made.run({"x": x})["y"]) - operators(lambda: of_torch(x)[0]))  # noqa: B023
    assert more[0] == more[1] < 100
