"""Phases put side by side: from step times as many channels, or step x step, to as many times more positions.

DepthToSpace of onnxruntime 1.32 takes 1.1 ns for each float and .7 for each byte. With channels last, as integer
convolutions have them, rows of the channels of as many phases as the step are copied whole, in .1 ns.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnxq.backends.onnxruntime.kernels import BYTES
from onnxq.graph.edits import set_constant
from onnxq.graph.namer import Namer
from onnxq.graph.values import AnyArray, constant_array, only_reader, rank_of

__all__ = ["Writer", "put_side_by_side", "quantizer_alike", "requantize", "row_of", "size_of", "sizes_of"]

_RANK = 4
"""Of planes."""
Size = int | None


class Writer:
    """Puts nodes in front of one.

    Attributes:
        before: the one.
        stem: what tensors and constants are named after.
    """

    def __init__(self, before: ir.Node, name: str, stem: str, namer: Namer) -> None:
        assert isinstance(before.graph, ir.Graph)
        self.before, self.stem = before, stem
        self._graph, self._name, self._namer = before.graph, name, namer

    def constant(self, name: str, numbers: AnyArray | list[int]) -> ir.Value:
        """An initializer."""
        array = numbers if isinstance(numbers, np.ndarray) else np.asarray(numbers, np.int64)
        return set_constant(self._graph, self._namer, f"{self.stem}_{name}", array)

    def name(self, value: ir.Value, name: str | None) -> None:
        """Give what makes a tensor the name of a node whose place it takes."""
        maker = value.producer()
        assert maker is not None
        maker.name = name

    def put(
        self,
        op: str,
        inputs: Sequence[ir.Value | None],
        sizes: Sequence[object],
        kind: ir.TypeProtocol | None,
        *,
        domain: str = "",
        of: str | None = None,
        **attributes: int | tuple[int, ...],
    ) -> ir.Value:
        """A node's output, of some sizes, those that are no numbers free, and of a type.

        Args:
            op: operator.
            inputs: of it.
            sizes: of the output.
            kind: its type.
            domain: of the operator.
            of: what the node is named after, where that is not the node whose place it takes.
            attributes: of the operator.
        """
        made = ir.node(op, inputs, attributes, domain=domain, name=self._namer.node(f"{of or self._name}_{op}"))
        self._graph.insert_before(self.before, [made])
        value = made.outputs[0]
        value.name, value.type = self._namer.fresh(f"{self.stem}_{op}"), kind
        value.shape = ir.Shape([size if isinstance(size, int) else None for size in sizes])
        return value


def sizes_of(value: ir.Value | None, rank: int = _RANK) -> tuple[Size, ...]:
    """Batch, channels and places along each axis, of planes if not of another rank; None where one is not known."""
    shape = value.shape if value is not None else None
    dims = list(shape) if shape is not None and len(shape) == rank else [None] * rank
    return tuple(d if isinstance(d, int) else None for d in dims)


def put_side_by_side(
    writer: Writer, value: ir.Value, step: int, quantizer: ir.Node, name: str | None = None
) -> ir.Value:
    """Quantize phases and put them side by side.

    Args:
        writer: puts the nodes.
        value: floats (N, step * step * M, H, W), the channels of one phase behind those of another, or
            (N, step * M, L), of static rank.
        step: how many phases there are along each axis.
        quantizer: has the scale and zero point.
        name: of a node that did so, for the first that takes its place.

    Returns:
        What they are, (N, M, step * H, step * W) or (N, M, step * L), on the grid.
    """
    if rank_of(value) == _RANK - 1:
        return _put_in_line(writer, value, step, quantizer, name)
    (batch, channels, height, width), floats = sizes_of(value), value.type
    assert channels is not None
    deep = channels // step**2
    value = requantize(writer, value, quantizer)
    data = _codes(value)
    value = writer.put("Transpose", [value], (batch, height, width, channels), floats, perm=(0, 2, 3, 1))
    if name is not None:
        writer.name(value, name)
    apart = writer.constant("phases", [0, 0, 0, step, step * deep])
    value = writer.put("Reshape", [value, apart], (batch, height, width, step, step * deep), floats)
    value = writer.put("Transpose", [value], (batch, height, step, width, step * deep), floats, perm=(0, 1, 3, 2, 4))
    rows, columns = height and height * step, width and width * step
    size = size_of(writer, data, (rows, columns), (step, step), deep)
    value = writer.put("Reshape", [value, size], (batch, rows, columns, deep), floats)
    return writer.put("Transpose", [value], (batch, deep, rows, columns), floats, perm=(0, 3, 1, 2))


def _put_in_line(writer: Writer, value: ir.Value, step: int, quantizer: ir.Node, name: str | None) -> ir.Value:
    """With channels last nothing moves: the phases of an element lie side by side already."""
    (batch, channels, length), floats = sizes_of(value, _RANK - 1), value.type
    assert channels is not None
    deep, longer = channels // step, length and length * step
    value = requantize(writer, value, quantizer)
    data = _codes(value)
    value = writer.put("Transpose", [value], (batch, length, channels), floats, perm=(0, 2, 1))
    if name is not None:
        writer.name(value, name)
    size = size_of(writer, data, (longer,), (step,), deep)
    value = writer.put("Reshape", [value, size], (batch, longer, deep), floats)
    return writer.put("Transpose", [value], (batch, deep, longer), floats, perm=(0, 2, 1))


def quantizer_alike(node: ir.Node) -> ir.Node | None:
    """The quantizer of bytes that alone reads a node's output, with the scale and zero point, of the same type, of the
    DequantizeLinear in front of the node.
    """
    unpack = node.inputs[0].producer() if node.inputs[0] is not None else None
    quantizer = only_reader(node.outputs[0])
    if unpack is None or quantizer is None or quantizer.graph is not node.graph:
        return None
    if (unpack.op_type, quantizer.op_type) != ("DequantizeLinear", "QuantizeLinear"):
        return None
    types = {value.dtype if value is not None else None for value in (unpack.inputs[0], quantizer.outputs[0])}
    if len(unpack.inputs) != len(quantizer.inputs) or len(types) > 1 or not types <= {*BYTES}:
        return None
    pairs = zip(unpack.inputs[1:], quantizer.inputs[1:], strict=True)
    arrays = [(constant_array(a), constant_array(b)) for a, b in pairs]
    same = all(a is not None and b is not None and a.size == 1 and np.array_equal(a, b) for a, b in arrays)
    return quantizer if same else None


def requantize(writer: Writer, value: ir.Value, quantizer: ir.Node) -> ir.Value:
    """Floats on the grid of a quantizer, of which onnxruntime makes integers of what stands around."""
    sizes: tuple[object, ...] = tuple(value.shape) if value.shape is not None else ()
    domain, numbers = quantizer.domain, quantizer.inputs[1:]
    kind, of = quantizer.outputs[0].type, value.name
    codes = writer.put("QuantizeLinear", [value, *numbers], sizes, kind, domain=domain, of=of)
    return writer.put("DequantizeLinear", [codes, *numbers], sizes, value.type, domain=domain, of=of)


def _codes(value: ir.Value) -> ir.Value:
    """The integers of what :func:`requantize` gives: a Conv that others than its quantizer read is float."""
    maker = value.producer()
    assert maker is not None and maker.inputs[0] is not None
    return maker.inputs[0]


def size_of(writer: Writer, data: ir.Value, whole: tuple[Size, ...], times: tuple[int, ...], channels: int) -> ir.Value:
    """The size (N, H, W, M) of what has so many times the rows and columns of (N, C, H, W), for a Reshape to it.

    Args:
        writer: puts nodes where some are free.
        data: of the former size, or (N, C, L).
        whole: rows and columns, or the length, as far as they are known.
        times: how many times as many.
        channels: M.
    """
    known = [size for size in whole if size is not None]
    if len(known) == len(whole):
        return writer.constant("size", [0, *known, channels])
    if len(whole) == 1:  # with the batch, or onnxruntime makes a -1 of it, which has no meaning where that is empty
        integers = ir.TensorType(ir.DataType.INT64)
        sizes = writer.put("Shape", [data], (3,), integers)
        picked = writer.put("Gather", [sizes, writer.constant("places", [0, 2])], (2,), integers)
        size = writer.put("Mul", [picked, writer.constant("times", [1, *times])], (2,), integers)
        return writer.put("Concat", [size, writer.constant("channels", [channels])], (3,), integers, axis=0)
    size = _multiplied(writer, data, (2, 4), list(times))
    parts = [writer.constant("batch", [0]), size, writer.constant("channels", [channels])]
    return writer.put("Concat", parts, (4,), size.type, axis=0)


def row_of(writer: Writer, data: ir.Value, columns: Size, each: int) -> ir.Value:
    """The size (N, H, columns * each) for a Reshape of (N, H, columns, each), rows and columns being those of data."""
    if columns is not None:
        return writer.constant("row", [0, 0, columns * each])
    # with the rows, or onnxruntime makes a -1 of them, as above
    parts = [writer.constant("batch", [0]), _multiplied(writer, data, (2, 4), [1, each])]
    return writer.put("Concat", parts, (3,), parts[1].type, axis=0)


def _multiplied(writer: Writer, data: ir.Value, axes: tuple[int, int], times: list[int]) -> ir.Value:
    """Some sizes of a tensor, from one axis to another, so many times as large."""
    ends = [writer.constant(name, [number]) for name, number in zip(("start", "end"), axes, strict=True)]
    integers, count = ir.TensorType(ir.DataType.INT64), (len(times),)
    size = writer.put("Slice", [writer.put("Shape", [data], (4,), integers), *ends], count, integers)
    return writer.put("Mul", [size, writer.constant("times", times)], count, integers)
