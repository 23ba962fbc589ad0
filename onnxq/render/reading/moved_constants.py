"""Constants with scales that a node moves about before they are read: a weight behind a Transpose, say.

Exporters of PyTorch write a linear layer so: the weight, (outputs, inputs) with a scale for each output, is unpacked,
transposed, and multiplied. A target looks for the constant that the layer reads, with its scales along the axis where
they are then.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.graph.edits import remove_nodes, replace_by_constant
from onnxq.graph.evaluate import evaluate
from onnxq.graph.values import AnyArray, constant_array, is_constant
from onnxq.qparams import QParams
from onnxq.spec import PerChannel, PerTensor

__all__ = ["is_moved", "move_constant"]

_MOVES = frozenset({"Flatten", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"})
_COUNTED = 1 << 24
"""Float32 counts every channel up to this one."""


def is_moved(node: ir.Node, index: int) -> bool:
    """Whether a node only moves the numbers of one input, and what it makes of a constant there is one too."""
    if node.op_type not in _MOVES or node.domain != "" or index != 0 or node.graph is None:
        return False
    rest = [value for value in node.inputs[1:] if value is not None]
    return all(is_constant(value) for value in rest) and not any(v.is_graph_output() for v in node.outputs)


def move_constant(model: ir.Model, node: ir.Node, qparams: QParams) -> list[tuple[ir.Value, QParams]] | None:
    """Put constants in the place of what a node makes of one that has scales.

    Args:
        model: changed in place.
        node: for which :func:`is_moved` holds; removed.
        qparams: of the constant.

    Returns:
        The constants, which have the names that the node's outputs had, each with its numbers. None where the scales
        of the constant do not lie along one axis of them: then nothing has changed.
    """
    source, graph = node.inputs[0], node.graph
    array = constant_array(source)
    assert source is not None and array is not None and isinstance(graph, ir.Graph)
    grids = [qparams] * len(node.outputs)
    if isinstance(qparams.spec.granularity, PerChannel):
        channels = _computed(model, node, source, _channels(array.shape, qparams.spec.granularity.axis))
        found = [_along_one_axis(one, qparams) for one in channels]
        grids = [one for one in found if one is not None]
    elif not isinstance(qparams.spec.granularity, PerTensor):
        return None
    arrays = _computed(model, node, source, array)
    if not len(arrays) == len(grids) == len(node.outputs):
        return None
    made = []
    for output, moved, grid in zip(list(node.outputs), arrays, grids, strict=True):
        name, readers = output.name or "", [use.node for use in output.uses()]
        replace_by_constant(output, ir.Tensor(np.ascontiguousarray(moved).reshape(moved.shape), name=name), graph)
        if readers:
            made.append((graph.initializers[name], grid))
    remove_nodes([node])
    return made


def _computed(model: ir.Model, node: ir.Node, source: ir.Value, array: AnyArray) -> list[AnyArray]:
    """What a node makes of an array in place of its constant; nothing where it cannot be computed."""
    held = source.const_value
    source.const_value = ir.Tensor(array, name=source.name)
    try:
        found = evaluate([node], node.outputs, opset_imports=model.opset_imports, ir_version=model.ir_version)
    finally:
        source.const_value = held
    return [found[value] for value in node.outputs if value in found]


def _channels(shape: tuple[int, ...], axis: int) -> NDArray[np.float32]:
    """For each number of a tensor, its index on an axis."""
    along = [1] * len(shape)
    along[axis] = -1
    counted = np.arange(min(shape[axis], _COUNTED), dtype=np.float32).reshape(along)
    return np.ascontiguousarray(np.broadcast_to(counted, shape))


def _along_one_axis(channels: AnyArray, qparams: QParams) -> QParams | None:
    """The numbers for a tensor of which each element has the scale of a channel; None where no axis tells them."""
    for axis in range(channels.ndim):
        line = np.moveaxis(channels, axis, 0).reshape(channels.shape[axis], -1)
        if line.size and (line == line[:, :1]).all():
            kept = line[:, 0].astype(np.int64)
            spec = replace(qparams.spec, granularity=PerChannel(axis))
            return QParams(spec, qparams.scale[kept], qparams.zero_point[kept])
    return None
