"""Arithmetic behind a layer whose output is reshaped first computes in front of that.

Converters write a one-dimensional convolution as one of two dimensions between Unsqueeze and Squeeze, a dense layer of
more than two dimensions between Reshapes, and a layer of a single sample between both. A bias, a batch normalization as
Mul and Add, or an activation function behind these is out of the reach of the layer that it belongs to. What treats
every element alike, or by its channel, may as well come first. Exact: the same numbers in another shape.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnxq.graph.edits import rename_output, set_constant, stand_for
from onnxq.graph.layer import Refusal, find_layer
from onnxq.graph.namer import Namer
from onnxq.graph.note import Note
from onnxq.graph.passes.cancel_squeezes import squeezed_axes
from onnxq.graph.traverse import all_graphs
from onnxq.graph.values import AnyArray, constant_array, only_reader, rank_of

__all__ = ["hoist"]

_FUNCTIONS = frozenset(
    (
        *("Clip", "Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "Relu", "Selu", "Sigmoid"),
        *("Softplus", "Softsign", "Tanh", "ThresholdedRelu"),
    )
)
_WITH_CONSTANT = frozenset(("Add", "Div", "Max", "Min", "Mul", "PRelu", "Sub"))
_RESHAPING = frozenset(("Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze"))


def hoist(model: ir.Model) -> list[Note]:
    """Let element-wise nodes compute what a layer gives, not what Squeeze, Unsqueeze, Reshape and Transpose make of it.

    Args:
        model: changed in place; constants must be folded and shapes known. Nodes keep their names, and what is read
            behind them too.

    Returns:
        A note of how many nodes were moved, if any.
    """
    namer = Namer(model)
    moved: set[ir.Node] = set()
    passed: set[ir.Node] = set()
    for graph in all_graphs(model):
        for node in list(graph):
            way = _way(node, moved)
            new = [step for step in way if step not in passed]
            if way and _move(node, way, new, graph, namer):
                moved.add(node)
                passed.update(way)
    return [Note("hoist", "", f"{len(moved)} element-wise nodes compute right behind their layer")] if moved else []


def _way(node: ir.Node, moved: set[ir.Node]) -> list[ir.Node]:
    """What reshapes a layer's output for a node, the last first; nothing where it is something else that it reads."""
    if node.domain != "" or node.op_type not in _FUNCTIONS | _WITH_CONSTANT:
        return []
    read = _data(node)
    way: list[ir.Node] = []
    while read is not None and only_reader(read) is not None:
        maker = read.producer()
        if maker is None or maker.graph is not node.graph:
            return []
        if maker in moved or _is_layer(read):
            return way if any(step.op_type != "Transpose" for step in way) else []
        if maker.domain != "" or maker.op_type not in _RESHAPING:
            return []
        way.append(maker)
        read = maker.inputs[0]
    return []


def _is_layer(value: ir.Value) -> bool:
    try:
        return find_layer(value) is not None
    except Refusal:
        return False


def _data(node: ir.Node) -> ir.Value | None:
    """What a node computes on besides constants; None where that is more than one tensor."""
    if node.op_type in _FUNCTIONS:
        return node.inputs[0]
    computed = [value for value in node.inputs if constant_array(value) is None]
    if node.op_type == "PRelu" and node.inputs[1] in computed:
        return None
    return computed[0] if len(computed) == 1 else None


def _move(node: ir.Node, way: Sequence[ir.Node], new: Sequence[ir.Node], graph: ir.Graph, namer: Namer) -> bool:
    """Move a node in front of what it reads through, where its constants fit there.

    What is made on the way holds other numbers then than those that all know by its name, so that it gets another one;
    what the last of it gives has the name of what the node gave.

    Args:
        node: the node.
        way: what it reads through, the last first.
        new: nodes on the way that none has moved past before.
        graph: of all of them.
        namer: of the model.
    """
    last, first, made = way[0].outputs[0], way[-1], node.outputs[0]
    source = first.inputs[0]
    constants: dict[int, AnyArray] = {}
    for index, value in enumerate(node.inputs) if node.op_type in _WITH_CONSTANT else ():
        array = constant_array(value)
        there = _in_front(array, last, way) if array is not None else array
        if there is not None:
            constants[index] = there
        elif array is not None:
            return False
    if source is None or made.name is None:
        return False
    for known in (node, *new):
        stand_for(known, [known])  # patterns may have named it by what it wrote
    for index, array in constants.items():
        given = node.inputs[index]
        before = constant_array(given)
        if given is not None and before is not None and array.shape != before.shape:
            node.replace_input_with(index, set_constant(graph, namer, f"{given.name}_hoisted", array))
    node.replace_input_with(next(index for index, value in enumerate(node.inputs) if value is last), source)
    rename_output(last, made)
    made.name, made.shape = namer.fresh(f"{last.name}_hoisted"), source.shape.copy() if source.shape else None
    graph.remove(node)
    graph.insert_before(first, node)
    first.replace_input_with(0, made)
    for step in new:
        if step is not way[0]:
            step.outputs[0].name = namer.fresh(f"{step.outputs[0].name}_hoisted")
    return True


def _in_front(array: AnyArray, value: ir.Value, way: Sequence[ir.Node]) -> AnyArray | None:
    """A constant that is added to a tensor, as it would be to what that is made of; None where it does not fit there.

    Args:
        array: of no more axes than the tensor, and as long as it is or 1 along each.
        value: the tensor.
        way: what makes it, the last first.
    """
    shape = value.shape
    if shape is None or array.ndim > len(shape):
        return None
    array = array.reshape((1,) * (len(shape) - array.ndim) + array.shape)
    if any(size != 1 and size != dim for size, dim in zip(array.shape, shape, strict=True)):
        return None
    for step in way:
        before = _before(array, step)
        if before is None:
            return None
        array = before
    return array


def _before(array: AnyArray, step: ir.Node) -> AnyArray | None:
    """A constant of the rank of what a node makes, in the rank and order of what it reads."""
    source = step.inputs[0]
    rank = rank_of(source) if source is not None else None
    if source is None or rank is None:
        return None
    if array.size == 1:
        return array.reshape((1,) * rank)
    if step.op_type == "Transpose":
        perm: Sequence[int] = step.attributes.get_ints("perm", list(range(rank))[::-1])
        return np.ascontiguousarray(array.transpose(np.argsort(perm)))
    if step.op_type in ("Squeeze", "Unsqueeze"):
        return _before_squeeze(array, step, rank)
    return _before_reshape(array, source, step.outputs[0])


def _before_squeeze(array: AnyArray, step: ir.Node, rank: int) -> AnyArray | None:
    """In front of a Squeeze or Unsqueeze, of a tensor of so many axes."""
    axes = squeezed_axes(step)
    if axes is None:
        return None
    if step.op_type == "Unsqueeze":
        return array.squeeze(axes) if all(array.shape[axis] == 1 for axis in axes) else None
    sizes = iter(array.shape)
    return array.reshape([1 if axis in axes else next(sizes) for axis in range(rank)])


def _before_reshape(array: AnyArray, source: ir.Value, target: ir.Value) -> AnyArray | None:
    """In front of a Reshape that leaves channels last, or all axes of more than one element as they are."""
    kept, made = _sizes(source), _sizes(target)
    if array.shape[-1] == array.size and source.shape is not None and source.shape[-1] == array.size:
        return array.reshape((1,) * (len(kept) - 1) + (-1,))
    if None in kept or [dim for dim in kept if dim != 1] != [dim for dim in made if dim != 1]:
        return None
    along = iter(size for size, dim in zip(array.shape, made, strict=True) if dim != 1)
    return array.reshape([1 if dim == 1 else next(along) for dim in kept])


def _sizes(value: ir.Value) -> list[int | str | None]:
    """The sizes of a tensor of known rank: numbers, names, None where nothing is known."""
    return [dim if isinstance(dim, int) else dim.value for dim in value.shape or ()]
