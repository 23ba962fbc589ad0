"""How a stream grows from one of its tensors until it holds all that must change together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from onnxq.algorithms.channels.norms import Norm
from onnxq.algorithms.channels.passing import passage
from onnxq.graph.layer import Layer, Refusal, as_layer
from onnxq.graph.values import constant_array

__all__ = ["Growth", "mixing_layer"]

_LEAST = 1e-3
"""Of a normalization's largest factor: what the smallest may be, since its offset is divided by it."""
_Place = tuple[ir.Value, int]
"""A tensor, and the axis of its channels, negative from the end."""


@dataclass(slots=True)
class Growth:
    """All that touches the channels of a tensor.

    Attributes:
        size: how many channels.
        known: the normalizations of the model, by each of their nodes.
        axes: tensors that hold them → the axis, negative from the end.
        writers: nodes of the layers that make some of the tensors.
        readers: nodes of the layers that read some.
        constants: node and index of its input → axis of the channels, of constants that are added or picked from.
        norms: normalizations in between → the layers that read what they make.
        closed: whether everything that touches the tensors can take part.
    """

    size: int
    known: Mapping[ir.Node, Norm]
    axes: dict[ir.Value, int] = field(default_factory=dict)
    writers: dict[ir.Node, None] = field(default_factory=dict)
    readers: dict[ir.Node, None] = field(default_factory=dict)
    constants: dict[tuple[ir.Node, int], int] = field(default_factory=dict)
    norms: dict[Norm, tuple[ir.Node, ...]] = field(default_factory=dict)
    closed: bool = True

    @classmethod
    def of(cls, layer: Layer, known: Mapping[ir.Node, Norm]) -> Growth:
        """What touches the output of a layer.

        Args:
            layer: see :func:`mixing_layer`.
            known: see above.
        """
        growth = cls(layer.out_channels(), known)
        growth._spread((layer.node.outputs[0], _axis(layer)))
        for norm in growth.norms:
            growth._follow(norm)
        return growth

    def tensors(self) -> list[ir.Value]:
        """All that change, those inside normalizations too."""
        inside = (output for norm in self.norms for node in norm.nodes for output in node.outputs if output.name)
        return list(dict.fromkeys([*self.axes, *inside]))

    def _spread(self, start: _Place) -> None:
        waiting = [start]
        while waiting:
            value, axis = waiting.pop()
            if value in self.axes:
                self.closed &= self.axes[value] == axis
                continue
            self.axes[value] = axis
            node = value.producer()
            self.closed &= node is not None and not value.is_graph_output() and self._fits(value, axis)
            if node is not None:
                waiting += self._made(node, value, axis)
            for use in value.uses():
                waiting += self._read(use.node, use.idx, value, axis)

    def _fits(self, value: ir.Value, axis: int) -> bool:
        """Whether a tensor has the channels, as far as its shape is known."""
        if value.shape is None:
            return True
        size = value.shape[axis] if len(value.shape) >= -axis else 0
        return not isinstance(size, int) or size == self.size

    def _made(self, node: ir.Node, value: ir.Value, axis: int) -> Iterable[_Place]:
        """What else is of the stream, since a node makes one of its tensors."""
        layer = mixing_layer(node)
        if layer is not None:
            self.closed &= layer.out_channels() == self.size and _axis(layer) == axis
            self.writers[node] = None
            return []
        return self._passed(node, value, axis)

    def _read(self, node: ir.Node, index: int, value: ir.Value, axis: int) -> Iterable[_Place]:
        """What else is of the stream, since a node reads one of its tensors."""
        if node.domain == "" and node.op_type in ("Shape", "Size"):
            return []
        if node.graph is not value.graph:
            return self._open()
        layer = mixing_layer(node)
        if layer is not None:
            self.closed &= index == 0 and layer.in_channels() == self.size and _axis(layer) == axis
            self.readers[node] = None
            return []
        return self._passed(node, value, axis)

    def _passed(self, node: ir.Node, value: ir.Value, axis: int) -> Iterable[_Place]:
        """Inputs and outputs of a node that treats all channels alike, and no value otherwise than linearly."""
        norm = self.known.get(node)
        if norm is not None:
            self.norms.setdefault(norm, ())
            self.closed &= axis == -1 and value in (norm.start, norm.end)
            return [(norm.start, -1), (norm.end, -1)]
        found = passage(node, value, axis)
        if found is None:
            return self._open()
        places = [(output, found.axis) for output in node.outputs if output.name]
        for index, at in found.inputs.items():
            tensor = node.inputs[index]
            assert tensor is not None
            array = constant_array(tensor)
            if array is None:
                places.append((tensor, at))
                continue
            each = array.ndim >= -at and array.shape[at] == self.size
            self.closed &= each or array.size == 1  # what differs by position alone would grow with the channels
            self.closed &= node.op_type != "Gather" or len(tensor.uses()) == 1  # a table is not stored twice
            self.constants[node, index] = at
        return places

    def _follow(self, norm: Norm) -> None:
        """Find the layers behind a normalization, into which its factors go; nothing else may use what it makes."""
        waiting, seen, readers = [norm.end], {norm.end}, dict[ir.Node, None]()
        while waiting:
            for node, _ in waiting.pop().uses():
                if node in self.readers:
                    readers[node] = None
                elif node in self.known:
                    self.closed = False
                elif node.outputs[0] in self.axes:
                    waiting += [output for output in node.outputs if output not in seen]
                    seen.update(node.outputs)
        others = (value for output in seen - {norm.end} for value in self._carried(output))
        self.closed &= all(value in seen for value in others) and _fits(norm, self.size)
        self.norms[norm] = tuple(readers)

    def _carried(self, value: ir.Value) -> Iterable[ir.Value]:
        """Inputs of the node that makes a tensor of the stream which hold channels, too."""
        node = value.producer()
        assert node is not None
        carries = ((v, v in self.axes or (node, index) in self.constants) for index, v in enumerate(node.inputs))
        return [v for v, carried in carries if v is not None and carried]

    def _open(self) -> Iterable[_Place]:
        self.closed = False
        return []


def mixing_layer(node: ir.Node) -> Layer | None:
    """A node as a layer that reads and makes all channels alike, with a weight of its own; None when it is none.

    Args:
        node: any.
    """
    try:
        layer = as_layer(node)
    except Refusal:
        return None
    if layer is None or layer.groups != 1 or layer.weight.dtype != ir.DataType.FLOAT:
        return None
    if len(layer.weight.uses()) != 1 or layer.weight.is_graph_output():
        return None
    if node.op_type == "MatMul" and len(layer.array_shape()) != 2:
        return None
    if node.op_type == "Gemm" and node.attributes.get_int("transA", 0) == 1:
        return None
    return layer


def _axis(layer: Layer) -> int:
    """Of the channels of what a layer reads and makes, from the end."""
    return 1 - len(layer.array_shape()) if layer.is_conv else -1


def _fits(norm: Norm, size: int) -> bool:
    """Whether a normalization's factors can be taken out of it, and its offsets divided by them."""
    numbers = [constant_array(node.inputs[index]) for node, index in filter(None, (norm.factors, norm.offsets))]
    if any(array is None or array.size != size for array in numbers):
        return False
    factors = np.abs(np.asarray(numbers[0], np.float64)) if norm.factors and norm.offsets else np.ones(1)
    return bool(factors.min() > _LEAST * factors.max())
