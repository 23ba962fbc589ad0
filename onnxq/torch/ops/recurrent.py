"""LSTM, GRU and RNN with their standard activations: by torch's own layers, which train two to four times as fast
as steps written here, and step by step the one kind that torch has not, a GRU that resets before its product."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir
import torch

from onnxq.graph.values import input_of
from onnxq.torch.attributes import Inputs, at
from onnxq.torch.ops.math import Op

__all__ = ["OPS", "unsupported"]

Tensor = torch.Tensor
Layer = Callable[..., tuple[Tensor, ...]]

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
    if input_of(node, 4) is not None:
        return "sequence_lens"
    if node.op_type == "LSTM" and input_of(node, 7) is not None:
        return "peepholes"
    if node.op_type == "LSTM" and node.attributes.get_int("input_forget", 0) == 1:
        return "input_forget"
    return None


def _gates(rows: Tensor, order: Sequence[int]) -> Tensor:
    """The rows of a weight or bias, gate by gate in another order."""
    gates = rows.chunk(len(order))
    return torch.cat([gates[k] for k in order])


def _by_torch(layer: Layer, order: Sequence[int], states: int) -> Op:
    """An operator as a layer of torch, which has the gates of ONNX in another order."""

    def run(node: ir.Node, inputs: Inputs, opset: int) -> tuple[Tensor, ...]:
        x, weight, recurrent = inputs[:3]
        assert x is not None and weight is not None and recurrent is not None
        bias, count, size = at(inputs, 3), weight.shape[0], recurrent.shape[-1]
        parameters = []
        for d in range(count):
            parts = [weight[d], recurrent[d], *(() if bias is None else bias[d].chunk(2))]
            parameters += [_gates(part, order) for part in parts]
        zero = x.new_zeros(count, x.shape[1], size)
        given = (at(inputs, 5), at(inputs, 6))[:states]
        starts = [zero if start is None else start for start in given]
        back = node.attributes.get_string("direction", "forward") == "reverse"
        steps = x.flip(0) if back else x
        state = starts if states > 1 else starts[0]
        trains = torch.is_grad_enabled()
        every, *finals = layer(steps, state, parameters, bias is not None, 1, 0.0, trains, count == 2, False)
        every = every.unflatten(-1, (count, size)).transpose(1, 2)
        return (every.flip(0) if back else every, *finals)

    return run


def _gru(node: ir.Node, inputs: Inputs, opset: int) -> tuple[Tensor | None, ...]:
    run = _GRU_OF_TORCH if node.attributes.get_int("linear_before_reset", 0) else _gru_by_steps
    return run(node, inputs, opset)


def _gru_by_steps(node: ir.Node, inputs: Inputs, opset: int) -> tuple[Tensor, ...]:
    """A GRU whose state is reset before it is multiplied."""
    x, weight, recurrent = inputs[:3]
    assert x is not None and weight is not None and recurrent is not None
    bias, start, size = at(inputs, 3), at(inputs, 5), recurrent.shape[-1]
    direction = node.attributes.get_string("direction", "forward")
    every, last = [], []
    for d in range(weight.shape[0]):
        back = direction == "reverse" or d == 1
        hidden = x.new_zeros(x.shape[1], size) if start is None else start[d]
        given = x @ weight[d].T
        given = given if bias is None else given + bias[d].chunk(2)[0] + bias[d].chunk(2)[1]
        of_gates, of_fresh = (part.T for part in recurrent[d].split((2 * size, size)))
        gates, fresh = (part.unbind() for part in given.split((2 * size, size), -1))
        rows = []
        for t in range(x.shape[0] - 1, -1, -1) if back else range(x.shape[0]):
            z, r = torch.sigmoid(gates[t] + hidden @ of_gates).chunk(2, -1)
            candidate = torch.tanh(fresh[t] + (r * hidden) @ of_fresh)
            hidden = (1 - z) * candidate + z * hidden
            rows.append(hidden)
        every.append(torch.stack(rows[::-1] if back else rows))
        last.append(hidden)
    return torch.stack(every, 1), torch.stack(last)


_GRU_OF_TORCH = _by_torch(torch.gru, (1, 0, 2), 1)

OPS: dict[str, Op] = {
    "LSTM": _by_torch(torch.lstm, (0, 2, 3, 1), 2),
    "GRU": _gru,
    "RNN": _by_torch(torch.rnn_tanh, (0,), 1),
}
"""Operator → function of the node, its inputs and the version of the operator set."""
