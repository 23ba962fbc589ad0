"""LSTM, GRU and RNN written out, step by step, in float.

TensorFlow Lite's own operators for sequences keep their state from one run to the next, which ONNX's do not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.backends.litert.placed import Placed, RefusedError, plain
from onnxq.backends.litert.translation import Translation

__all__ = ["OPERATORS"]

_MOST_STEPS = 128
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_DEFAULTS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}
_FUNCTIONS = {"Relu": "RELU", "Tanh": "TANH"}
"""Of an RNN."""
_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


@dataclass(frozen=True)
class _Cell:
    """The weights of one direction: (gates H, I), (gates H, H), (gates H,) twice."""

    w: NDArray[Any]
    r: NDArray[Any]
    wb: NDArray[Any]
    rb: NDArray[Any]
    size: int


State = tuple[Placed, ...]
"""What a step hands on, each (N, H): the output, and the cell's state of an LSTM."""


def recurrent(t: Translation, node: ir.Node) -> None:
    """Every step of every direction."""
    t.integer = False
    _require_plain(node)
    x = t.read(node.inputs[0], plain(3))
    steps, batch, width = x.shape
    if steps > _MOST_STEPS:
        raise RefusedError(f"it has {steps} steps, and {_MOST_STEPS} at most are written out")
    lengths = t.numbers(_input(node, 4)) if _input(node, 4) is not None else np.full(batch, steps)
    if lengths is None or (lengths != steps).any():
        raise RefusedError("its sequences have lengths of their own")
    x = t.reshaped(x, (steps * batch, width))
    sequences, ends = [], []
    for k, backwards in enumerate(_DIRECTIONS[node.attributes.get_string("direction", "forward")]):
        cell = _cell(t, node, k)
        count = 2 if node.op_type == "LSTM" else 1
        state = tuple(_initial(t, node, 5 + s, k, (batch, cell.size)) for s in range(count))
        inputs = _parts(t, _product(t, x, cell.w, cell.wb), 0, [batch] * steps)
        outputs = []
        for given in reversed(inputs) if backwards else inputs:
            state = _step(t, node, cell, given, state)
            outputs.append(state[0])
        sequences.append(outputs[::-1] if backwards else outputs)
        ends.append(state)
    _write(t, node, sequences, ends)


def _require_plain(node: ir.Node) -> None:
    get, op = node.attributes, node.op_type
    count = len(_DIRECTIONS[get.get_string("direction", "forward")])
    functions = [str(name) for name in get.get_strings("activations", ()) or _DEFAULTS[op] * count]
    known = functions == _DEFAULTS[op] * count or (op == "RNN" and all(name in _FUNCTIONS for name in functions))
    if not known:
        raise RefusedError(f"its functions are {', '.join(functions)}")
    coupled, first = get.get_int("input_forget", 0) == 1, get.get_int("layout", 0) == 1
    if "clip" in get or coupled or first or _input(node, 7) is not None:
        raise RefusedError("it clips, couples gates, has peepholes, or has the batch first")


def _input(node: ir.Node, position: int) -> ir.Value | None:
    return node.inputs[position] if len(node.inputs) > position else None


def _cell(t: Translation, node: ir.Node, direction: int) -> _Cell:
    w, r = (t.numbers(node.inputs[position]) for position in (1, 2))
    if w is None or r is None:
        raise RefusedError("its weights are computed")
    gates = w.shape[1]
    biases = (
        t.numbers(_input(node, 3)) if _input(node, 3) is not None else np.zeros((w.shape[0], 2 * gates), np.float32)
    )
    if biases is None:
        raise RefusedError("its biases are computed")
    both = biases[direction]
    return _Cell(w[direction], r[direction], both[:gates], both[gates:], gates // _GATES[node.op_type])


def _initial(t: Translation, node: ir.Node, position: int, direction: int, shape: tuple[int, int]) -> Placed:
    """A state (N, H) before the first step."""
    value = _input(node, position)
    if value is None:
        return t.constant("zeros", np.zeros(shape, np.float32))
    x = t.read(value, plain(3))
    return t.reshaped(_parts(t, x, 0, [1] * x.shape[0])[direction], shape)


def _product(t: Translation, x: Placed, weight: NDArray[Any], bias: NDArray[Any]) -> Placed:
    kernel, added = t.constant("weights", weight), t.constant("bias", bias)
    return t.compute("FULLY_CONNECTED", [x], kernel.index, added.index, shape=(x.shape[0], weight.shape[0]))


def _parts(t: Translation, x: Placed, axis: int, sizes: Sequence[int]) -> list[Placed]:
    """A tensor in parts along an axis."""
    if len(sizes) == 1:
        return [x]
    shapes = [(*x.shape[:axis], size, *x.shape[axis + 1 :]) for size in sizes]
    made = [Placed(t.flat.tensor("part", shape, x.dtype), shape, x.order, x.dtype) for shape in shapes]
    inputs = [x.index, t.list_of(sizes), t.flat.constant("axis", np.array(axis, np.int32))]
    t.flat.operator("SPLIT_V", inputs, [one.index for one in made], numSplits=len(made))
    return made


def _step(t: Translation, node: ir.Node, cell: _Cell, given: Placed, state: State) -> State:
    if node.op_type == "LSTM":
        return _of_lstm(t, cell, given, state)
    if node.op_type == "GRU":
        apart = node.attributes.get_int("linear_before_reset", 0) != 0
        return (_of_gru(t, cell, given, state[0], apart=apart),)
    functions = node.attributes.get_strings("activations", ()) or ["Tanh"]
    total = t.compute("ADD", [given, _product(t, state[0], cell.r, cell.rb)])
    return (t.compute(_FUNCTIONS[str(functions[0])], [total]),)


def _of_lstm(t: Translation, cell: _Cell, given: Placed, state: State) -> State:
    total = t.compute("ADD", [given, _product(t, state[0], cell.r, cell.rb)])
    i, o, f, c = _parts(t, total, 1, [cell.size] * 4)
    kept = t.compute("MUL", [t.compute("LOGISTIC", [f]), state[1]])
    new = t.compute("MUL", [t.compute("LOGISTIC", [i]), t.compute("TANH", [c])])
    inner = t.compute("ADD", [kept, new])
    return t.compute("MUL", [t.compute("LOGISTIC", [o]), t.compute("TANH", [inner])]), inner


def _of_gru(t: Translation, cell: _Cell, given: Placed, before: Placed, *, apart: bool) -> Placed:
    """z of the old and 1 - z of the new; ``apart``: the reset gate comes behind the product of the old."""
    size = cell.size
    gates, hidden = _parts(t, given, 1, [2 * size, size])
    if apart:
        old, old_hidden = _parts(t, _product(t, before, cell.r, cell.rb), 1, [2 * size, size])
        z, r = _parts(t, t.compute("LOGISTIC", [t.compute("ADD", [gates, old])]), 1, [size] * 2)
        reset = t.compute("MUL", [r, old_hidden])
    else:
        old = _product(t, before, cell.r[: 2 * size], cell.rb[: 2 * size])
        z, r = _parts(t, t.compute("LOGISTIC", [t.compute("ADD", [gates, old])]), 1, [size] * 2)
        reset = _product(t, t.compute("MUL", [r, before]), cell.r[2 * size :], cell.rb[2 * size :])
    new = t.compute("TANH", [t.compute("ADD", [hidden, reset])])
    return t.compute("ADD", [new, t.compute("MUL", [z, t.compute("SUB", [before, new])])])


def _write(t: Translation, node: ir.Node, sequences: list[list[Placed]], ends: list[State]) -> None:
    """Y (T, D, N, H), and the states behind the last step (D, N, H)."""
    outputs = [*node.outputs, None, None, None][:3]
    if outputs[0] is not None and outputs[0].name:
        batch, size = sequences[0][0].shape
        steps = [_joined(t, list(states), (1, 1, batch, size), 1) for states in zip(*sequences, strict=True)]
        t.place(outputs[0], _together(t, steps, 0))
    for k, value in enumerate(outputs[1:]):
        if value is not None and value.name:
            states = [state[k] for state in ends]
            t.place(value, _joined(t, states, (1, *states[0].shape), 0))


def _joined(t: Translation, parts: list[Placed], shape: tuple[int, ...], axis: int) -> Placed:
    return _together(t, [t.reshaped(part, shape) for part in parts], axis)


def _together(t: Translation, parts: list[Placed], axis: int) -> Placed:
    if len(parts) == 1:
        return parts[0]
    shape = list(parts[0].shape)
    shape[axis] = sum(part.shape[axis] for part in parts)
    index = t.flat.tensor("together", shape, parts[0].dtype)
    t.flat.operator("CONCATENATION", [part.index for part in parts], [index], axis=axis)
    return Placed(index, tuple(shape), plain(len(shape)), parts[0].dtype)


OPERATORS: dict[str, Callable[[Translation, ir.Node], None]] = dict.fromkeys(_GATES, recurrent)
