"""LSTM, GRU and RNN with their standard activations, step by step, as ONNX defines them."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir
import torch

from onnxq.torch.attributes import Inputs, at
from onnxq.torch.ops.math import Op

__all__ = ["OPS", "unsupported"]

Tensor = torch.Tensor
State = tuple[Tensor, ...]
Step = Callable[[Tensor, State], State]

_ACTIVATIONS = {"LSTM": ["sigmoid", "tanh", "tanh"], "GRU": ["sigmoid", "tanh"], "RNN": ["tanh"]}


def unsupported(node: ir.Node) -> str | None:
    """What of a node cannot be run here; None where all can."""
    standard = _ACTIVATIONS.get(node.op_type)
    if standard is None:
        return None
    given = node.attributes.get_strings("activations", None)
    if given is not None and [g.lower() for g in given] not in (standard, standard * 2):
        return f"activations {', '.join(given)}"
    if "clip" in node.attributes:
        return "clip"
    if node.attributes.get_int("layout", 0):
        return "layout=1"
    if len(node.inputs) > 4 and node.inputs[4] is not None:
        return "sequence_lens"
    if node.op_type == "LSTM" and len(node.inputs) > 7 and node.inputs[7] is not None:
        return "peepholes"
    if node.op_type == "LSTM" and node.attributes.get_int("input_forget", 0) == 1:
        return "input_forget"
    return None


def _lstm(node: ir.Node, recurrent: Tensor, biases: tuple[Tensor, Tensor]) -> Step:
    bias = biases[0] + biases[1]

    def step(projected: Tensor, state: State) -> State:
        hidden, cell = state
        i, o, f, c = (projected + hidden @ recurrent.T + bias).chunk(4, -1)
        cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(c)
        return torch.sigmoid(o) * torch.tanh(cell), cell

    return step


def _gru(node: ir.Node, recurrent: Tensor, biases: tuple[Tensor, Tensor]) -> Step:
    size = recurrent.shape[1]
    before_reset = node.attributes.get_int("linear_before_reset", 0)
    outer, inner = biases

    def step(projected: Tensor, state: State) -> State:
        (hidden,) = state
        given = projected + outer
        gates = given[..., : 2 * size] + hidden @ recurrent[: 2 * size].T + inner[: 2 * size]
        z, r = torch.sigmoid(gates).chunk(2, -1)
        if before_reset:
            candidate = r * (hidden @ recurrent[2 * size :].T + inner[2 * size :])
        else:
            candidate = (r * hidden) @ recurrent[2 * size :].T + inner[2 * size :]
        fresh = torch.tanh(given[..., 2 * size :] + candidate)
        return ((1 - z) * fresh + z * hidden,)

    return step


def _rnn(node: ir.Node, recurrent: Tensor, biases: tuple[Tensor, Tensor]) -> Step:
    bias = biases[0] + biases[1]
    return lambda projected, state: (torch.tanh(projected + state[0] @ recurrent.T + bias),)


def _recurrent(make: Callable[[ir.Node, Tensor, tuple[Tensor, Tensor]], Step], states: int) -> Op:
    def run(node: ir.Node, inputs: Inputs, opset: int) -> tuple[Tensor, ...]:
        x, weight, recurrent = inputs[:3]
        assert x is not None and weight is not None and recurrent is not None
        bias = at(inputs, 3)
        starts = [at(inputs, 5), at(inputs, 6)][:states]
        direction = node.attributes.get_string("direction", "forward")
        every, last = [], []
        for d in range(weight.shape[0]):
            back = direction == "reverse" or d == 1
            zero = x.new_zeros(x.shape[1], recurrent.shape[-1])
            state: State = tuple(zero if s is None else s[d] for s in starts)
            both = x.new_zeros(2 * weight.shape[1]) if bias is None else bias[d]
            parts = both.chunk(2)
            step = make(node, recurrent[d], (parts[0], parts[1]))
            projected = x @ weight[d].T
            rows = []
            for t in range(x.shape[0] - 1, -1, -1) if back else range(x.shape[0]):
                state = step(projected[t], state)
                rows.append(state[0])
            every.append(torch.stack(rows[::-1] if back else rows))
            last.append(state)
        finals = tuple(torch.stack([state[k] for state in last]) for k in range(states))
        return (torch.stack(every, 1), *finals)

    return run


OPS: dict[str, Op] = {"LSTM": _recurrent(_lstm, 2), "GRU": _recurrent(_gru, 1), "RNN": _recurrent(_rnn, 1)}
"""Operator → function of the node, its inputs and the version of the operator set."""
