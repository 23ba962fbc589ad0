"""Blocks of a model: what lies between two tensors through which alone everything passes. Graph code only.

A tensor is a cut where no other tensor that depends on a quantized layer is still needed. What lies between two
neighbouring cuts has branches (a residual block), or is a link of a chain; up to three layers of a chain make a block
(Li et al., BRECQ: Pushing the Limit of Post-Training Quantization by Block Reconstruction, 2021, section 3.2). What has
no cuts, as the long skips of a U-Net leave none, falls into single layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onnxq.algorithms.common.quantized_layer import QuantizedLayer
from onnxq.graph.pieces import reads
from onnxq.graph.values import is_constant

__all__ = ["Block", "find_blocks", "reads", "single_layers"]

_CHAIN = 3
"""Layers of a chain that make a block."""
_LARGEST = 16
"""Layers of the largest block."""

_TAIL = frozenset(
    {
        "Add", "AveragePool", "BatchNormalization", "Clip", "Div", "Elu", "Flatten", "Gelu", "GlobalAveragePool",
        "HardSigmoid", "HardSwish", "LeakyRelu", "MaxPool", "Mish", "Mul", "PRelu", "Relu", "Reshape", "Squeeze", "Sub",
        "Transpose", "Unsqueeze",
    }
)  # fmt: skip
"""Operators that belong to the block in front of them when nothing else reads that block and the rest is constant."""
_SHAPES = frozenset({"Shape", "Size"})


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """A region of the main graph with its quantized layers.

    Attributes:
        inputs: tensors that enter it, constants left out; float32 ones, or inputs of the model.
        output: the tensor that leaves it.
        layers: quantized layers inside, in order.
        nodes: all nodes inside, in order.
    """

    inputs: tuple[str, ...]
    output: str
    layers: tuple[QuantizedLayer, ...]
    nodes: tuple[ir.Node, ...]

    @property
    def name(self) -> str:
        """Its first and its last layer."""
        first, last = self.layers[0].name, self.layers[-1].name
        return first if first == last else f"{first} … {last}"


def find_blocks(model: ir.Model, layers: Sequence[QuantizedLayer]) -> list[Block]:
    """The blocks of a model, in order; each layer of the main graph is in one of them.

    Args:
        model: nodes in topological order; types known as after ``normalize``.
        layers: of this model; those inside subgraphs are left out.
    """
    scene = _Scene(model, layers)
    blocks: list[Block] = []
    chain: list[QuantizedLayer] = []
    start = -1
    for first, last, end in scene.segments():
        inside = [layer for layer in scene.layers if first < scene.position[layer.node] <= last]
        if not inside:
            continue
        if len(inside) == 1 and end is not None:
            start = first if not chain else start
            chain += inside
            if len(chain) == _CHAIN:
                blocks.append(scene.block(chain, start, end))
                chain = []
            chain_end = end
            continue
        if chain:
            blocks.append(scene.block(chain, start, chain_end))
            chain = []
        if end is not None and len(inside) <= _LARGEST:
            blocks.append(scene.block(inside, first, end))
        else:
            blocks += [scene.single(layer) for layer in inside]
    if chain:
        blocks.append(scene.block(chain, start, chain_end))
    return blocks


def single_layers(model: ir.Model, layers: Sequence[QuantizedLayer]) -> list[Block]:
    """A block for each layer of the main graph, with the operators that belong to it alone behind it."""
    scene = _Scene(model, layers)
    return [scene.single(layer) for layer in scene.layers]


class _Scene:
    """The main graph, seen as a line of nodes.

    Attributes:
        layers: quantized layers of the main graph, in order.
        position: of each node.
    """

    def __init__(self, model: ir.Model, layers: Sequence[QuantizedLayer]) -> None:
        self.nodes = list(model.graph)
        self.position = {node: index for index, node in enumerate(self.nodes)}
        known = sorted((self.position[x.node], i) for i, x in enumerate(layers) if x.node in self.position)
        self.layers = [layers[i] for _, i in known]
        behind: set[ir.Value] = set()
        wanted = {layer.node for layer in self.layers}
        for node in self.nodes:
            if node in wanted or any(value in behind for value in reads(node)):
                behind.update(node.outputs)
        self.trunk = {value for value in behind if _is_float(value)}

    def segments(self) -> Iterator[tuple[int, int, ir.Value | None]]:
        """Runs of nodes: the position in front of the first one, that of the last one, and the cut behind it.

        The cut is None for what lies behind the last one.
        """
        needed = self._read_last()
        live: set[ir.Value] = set()
        ends: dict[int, list[ir.Value]] = {}
        start = -1
        cut: ir.Value | None = None
        for index, node in enumerate(self.nodes):
            live.difference_update(ends.get(index, ()))
            for value in node.outputs:
                if value in self.trunk and needed[value] > index:
                    live.add(value)
                    ends.setdefault(needed[value], []).append(value)
            if len(live) == 1 and cut not in live:
                cut = next(iter(live))
                end = self._made(cut)
                yield start, end, cut
                start = end
        if start + 1 < len(self.nodes):
            results = [v for v in self.nodes[-1].outputs if v in self.trunk]
            last = [v for node in self.nodes[start + 1 :] for v in node.outputs if v in self.trunk and not v.uses()]
            yield start, len(self.nodes) - 1, results[0] if len(last) == 1 and results == last else None

    def _read_last(self) -> dict[ir.Value, int]:
        """The position of the last node that reads a tensor of the trunk, itself or in a body; -1 where none does."""
        needed = {
            value: max((self.position[use.node] for use in value.uses() if self._counts(use.node)), default=-1)
            for value in self.trunk
        }
        for node in self.nodes:
            for value in reads(node):
                if value in self.trunk and value not in node.inputs:
                    needed[value] = max(needed[value], self.position[node])
        return needed

    def block(self, layers: Sequence[QuantizedLayer], start: int, end: ir.Value) -> Block:
        """The block of some layers, from the tensors made up to a position to a cut and what belongs to it."""
        return self._gather(layers, start, self._tail(end))

    def single(self, layer: QuantizedLayer) -> Block:
        """A layer by itself."""
        end = self._tail(layer.node.outputs[0])
        inside = {layer.node}
        value = end
        while (node := value.producer()) is not None and node is not layer.node:
            inside.add(node)
            value = next(v for v in node.inputs if v is not None and not is_constant(v))
        return self._gather([layer], self.position[layer.node] - 1, end, inside)

    def _gather(
        self, layers: Sequence[QuantizedLayer], start: int, end: ir.Value, only: Iterable[ir.Node] | None = None
    ) -> Block:
        inside: set[ir.Node] = set()
        entering: dict[str, None] = {}
        stack = [end]
        allowed = None if only is None else set(only)
        while stack:
            value = stack.pop()
            node = value.producer()
            if is_constant(value) or not value.name or node in inside:
                continue
            outside = (
                node is None
                or (_is_float(value) and (value not in self.trunk or self._made(value) <= start))
                or (allowed is not None and _is_float(value) and node not in allowed)
            )
            if outside or node is None:
                entering[value.name] = None
                continue
            inside.add(node)
            stack.extend(reads(node))
        found = [layer for layer in layers if layer.node in inside]
        nodes = sorted(inside, key=self.position.__getitem__)
        return Block(tuple(entering), end.name or "", tuple(found), tuple(nodes))

    def _tail(self, value: ir.Value) -> ir.Value:
        """The value at the end of the operators that belong to what makes ``value``."""
        while True:
            uses = list(value.uses())
            if len(uses) != 1 or value.is_graph_output():
                return value
            node = uses[0].node
            others = [v for i, v in enumerate(node.inputs) if v is not None and i != uses[0].idx]
            fits = node.op_type in _TAIL and node.domain == "" and len(node.outputs) == 1 and node in self.position
            if not fits or not all(is_constant(v) for v in others) or node in {x.node for x in self.layers}:
                return value
            value = node.outputs[0]

    def _made(self, value: ir.Value) -> int:
        node = value.producer()
        return -1 if node is None else self.position.get(node, -1)

    def _counts(self, node: ir.Node) -> bool:
        return node.op_type not in _SHAPES and node in self.position


def _is_float(value: ir.Value) -> bool:
    return value.dtype in (None, ir.DataType.FLOAT)
