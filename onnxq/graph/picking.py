"""Where a model picks among what it has computed: a detector's NonMaxSuppression, and the outputs behind it.

Which boxes are left, how many and in which order, is no matter of a little noise: two values that are all but equal
change places, one just below a threshold is gone, and a box in another row counts as wrong in all its numbers. What is
picked from tells what noise does; the outputs do not.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Sequence, Set
from typing import NamedTuple

import onnx_ir as ir

from onnxq.graph.pieces import reads
from onnxq.graph.traverse import all_nodes, subgraphs, with_bodies
from onnxq.graph.values import is_constant

__all__ = ["PICKED_FROM", "Picking", "picking", "sized_by_numbers"]

PICKED_FROM = "onnxq.picked_from"
"""Key in a value's ``meta``: it is an output only to show what the model picks from."""

_PICKS = frozenset({"Compress", "NonMaxSuppression", "NonZero", "Unique"})
"""Operators that pick as many as there are."""
_LARGEST = frozenset({"ArgMax", "ArgMin"})
_LAYERS = frozenset({"Conv", "ConvTranspose", "Gemm", "GRU", "LSTM", "MatMul", "RNN"})
_SIZES = frozenset({"Shape", "Size"})
_VIEWS = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
_FLOATS = (None, ir.DataType.FLOAT)


class Picking(NamedTuple):
    """What a model picks from, and what it makes of that.

    Attributes:
        tensors: float tensors of the main graph that are picked from and depend on a layer, in the order of the graph.
        outputs: names of the outputs that depend on how many, or which, were picked: they are not compared.
        nodes: of the main graph, that pick or depend on what was picked.
    """

    tensors: tuple[str, ...] = ()
    outputs: frozenset[str] = frozenset()
    nodes: frozenset[ir.Node] = frozenset()


def picking(model: ir.Model) -> Picking:
    """What a model picks from; nothing where layers with weights come behind, as in a detector of two stages.

    A TopK in front of what picks is a part of it. What reads a truth value, as of scores above a threshold, picks from
    the numbers that it was computed from. An ArgMax picks one of each row: its own output is compared, and what it
    reads as well; numbers that it picks elsewhere (the place of a joint, say) are not. What picks by numbers of no
    layer, as a mask of the input, is no pick.

    Args:
        model: constants folded and types known.
    """
    nodes = list(model.graph)
    of_layers = _of_layers(nodes)
    picks, largest = _picks(nodes, of_layers)
    after, read = _after(nodes, picks, largest)
    found = _picked_from(nodes, of_layers, largest, after, read)
    tensors = tuple(value.name for node in nodes for value in node.outputs if value in found and value.name)
    return Picking(tensors, _uncompared(model, picks, after), frozenset(after)) if tensors else Picking()


def _picks(nodes: Sequence[ir.Node], of_layers: Set[ir.Value]) -> tuple[list[ir.Node], list[ir.Node]]:
    """What picks by numbers of layers: as many as there are, each TopK in front of that too, and one of each row."""
    able = [node for node in nodes if not of_layers.isdisjoint(reads(node))]
    picks = [node for node in able if _holds(node, _PICKS)]
    before = _before(picks)
    picks += [node for node in nodes if node in before and _holds(node, {"TopK"})]
    return picks, [node for node in able if node.op_type in _LARGEST and node.domain == ""]


def _after(
    nodes: Sequence[ir.Node], picks: Sequence[ir.Node], largest: Sequence[ir.Node]
) -> tuple[set[ir.Node], dict[ir.Value, None]]:
    """What picks, all that depends on it, and the values that these read.

    What picks one of each row counts where numbers of an output depend on it and no layer does.
    """
    elsewhere = [node for node in largest if any(map(_is_float_output, _outputs(_behind(nodes, {node})[0])))]
    after, read = _behind(nodes, {*picks, *elsewhere})
    return (after, read) if after else _behind(nodes, set(picks))


def _picked_from(
    nodes: Sequence[ir.Node],
    of_layers: Set[ir.Value],
    largest: Sequence[ir.Node],
    after: Set[ir.Node],
    read: Iterable[ir.Value],
) -> set[ir.Value]:
    """Numbers of layers that are picked from, each once however it is laid out."""
    behind = _outputs(after)
    found = _numbers(value for value in read if value not in behind)
    for node in largest:
        if node not in after and _behind(nodes, {node})[0]:
            found |= {value for value in _numbers(node.inputs[:1]) if not value.is_graph_output()}
    found &= of_layers
    return {value for value in found if not _shows_the_same(value, found)}


def _uncompared(model: ir.Model, picks: Collection[ir.Node], after: Set[ir.Node]) -> frozenset[str]:
    """Outputs behind what picks as many as there are; behind what picks one of each row, those that are numbers."""
    behind, counted = _outputs(after), _outputs(_behind(model.graph, set(picks))[0])
    left = [v for v in model.graph.outputs if v in behind and (v in counted or _is_float_output(v))]
    return frozenset(value.name or "" for value in left)


def _outputs(nodes: Iterable[ir.Node]) -> set[ir.Value]:
    return {value for node in nodes for value in node.outputs}


def _is_float_output(value: ir.Value) -> bool:
    return value.is_graph_output() and value.dtype in _FLOATS


def sized_by_numbers(model: ir.Model) -> set[ir.Node]:
    """Nodes whose results may be empty, since how many elements they have depends on what was picked.

    Bodies of a Loop, Scan or If are taken as a whole: where one picks, or reads what was picked, all its nodes are.
    """
    if not any(node.op_type in _PICKS and node.domain == "" for node in all_nodes(model)):
        return set()
    found: set[ir.Node] = set()

    def walk(graph: ir.Graph, behind: bool) -> None:
        for node in graph:
            here = behind or _holds(node, _PICKS) or any(value.producer() in found for value in reads(node))
            if here:
                found.add(node)
            for body in subgraphs(node):
                walk(body, here)

    walk(model.graph, False)
    return {node for node in found if not all(_is_fixed(value) for value in node.outputs)}


def _is_fixed(value: ir.Value) -> bool:
    return value.shape is not None and value.shape.is_static()


def _behind(nodes: Iterable[ir.Node], picks: Collection[ir.Node]) -> tuple[set[ir.Node], dict[ir.Value, None]]:
    """What picks, and all that depends on it, and the values that these read; nothing where a layer is among them.

    Args:
        nodes: in the order of the graph.
        picks: those of them that pick.
    """
    after: set[ir.Node] = set()
    behind: set[ir.Value] = set()
    read: dict[ir.Value, None] = {}
    for node in nodes:
        given = reads(node)
        if node in picks or not behind.isdisjoint(given):
            if any(_is_layer(inner) for inner in with_bodies(node)):
                return set(), {}
            after.add(node)
            behind.update(node.outputs)
            read.update(dict.fromkeys(given))
    return after, read


def _holds(node: ir.Node, operators: Iterable[str]) -> bool:
    return any(inner.op_type in operators and inner.domain == "" for inner in with_bodies(node))


def _is_layer(node: ir.Node) -> bool:
    return node.op_type in _LAYERS and any(_is_weight(value) for value in node.inputs[1:2])


def _is_weight(value: ir.Value | None) -> bool:
    """Whether a value is a constant, of a node too, stored as integers or not."""
    maker = value.producer() if value is not None else None
    if maker is not None and maker.op_type in ("Cast", "DequantizeLinear"):
        value = maker.inputs[0]
        maker = value.producer() if value is not None else None
    return is_constant(value) or (maker is not None and maker.op_type == "Constant")


def _shows_the_same(value: ir.Value, others: Container[ir.Value]) -> bool:
    """Whether another value holds the same numbers."""
    while (node := value.producer()) is not None and node.op_type in _VIEWS and node.inputs[0] is not None:
        value = node.inputs[0]
        if value in others:
            return True
    return False


def _of_layers(nodes: Iterable[ir.Node]) -> set[ir.Value]:
    """What nodes write that depends on the numbers of a layer; nodes in the order of the graph."""
    found: set[ir.Value] = set()
    for node in nodes:
        if node.op_type in _SIZES:
            continue
        if any(_is_layer(inner) for inner in with_bodies(node)) or not found.isdisjoint(reads(node)):
            found.update(node.outputs)
    return found


def _before(nodes: Iterable[ir.Node]) -> set[ir.Node]:
    """The nodes that some depend on."""
    found: set[ir.Node] = set()
    stack = list(nodes)
    while stack:
        for value in reads(stack.pop()):
            producer = value.producer()
            if producer is not None and producer not in found:
                found.add(producer)
                stack.append(producer)
    return found


def _numbers(values: Iterable[ir.Value | None]) -> set[ir.Value]:
    """Float tensors among some, and the nearest that the others follow from."""
    found: set[ir.Value] = set()
    seen: set[ir.Value] = set()
    stack = list(values)
    while stack:
        value = stack.pop()
        producer = value.producer() if value is not None else None
        if value is None or value in seen or producer is None or is_constant(value):
            continue
        seen.add(value)
        if value.dtype in _FLOATS:
            found.add(value)
        else:
            stack += reads(producer)
    return found
