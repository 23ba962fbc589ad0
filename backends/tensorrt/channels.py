"""Numbers of channels that a model leaves free, and its convolutions do not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import onnx_ir as ir

from onnxq.graph.note import Note
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import static_shape

__all__ = ["known_channels"]


def known_channels(model: ir.Model) -> list[Note]:
    """Put numbers where sizes are free that the weights of a convolution fix, and TensorRT does not find them.

    It takes no ConvTranspose of a free number of channels, and counts one channel, of quantized weights at least,
    where a convolution has groups; any other model keeps the sizes that it declares. A name that several sizes seem to
    have (two convolutions differ, or it stands twice in an input, as where an exporter calls all free sizes ``?``)
    stays free.

    Args:
        model: changed in place, shapes inferred.

    Returns:
        One note with the names of these sizes, if any.
    """
    fixed = _fixed(model)
    twice = {dim for value in model.graph.inputs if value.shape for dim, n in Counter(value.shape).items() if n > 1}
    once = (name for name, sizes in fixed.items() if len(sizes) == 1 and ir.SymbolicDim(name) not in twice)
    found = {name: min(fixed[name]) for name in once}
    if not found:
        return []
    for value in _tensors(model):
        if value.shape is not None:
            dims = [found.get(str(dim.value), dim) if isinstance(dim, ir.SymbolicDim) else dim for dim in value.shape]
            value.shape = ir.Shape(dims)
    said = ", ".join(f"{name} is {size}" for name, size in found.items())
    return [Note("known_channels", "", f"numbers of channels that convolutions fix: {said}")]


def _fixed(model: ir.Model) -> dict[str, set[int]]:
    """Name of a free size → the numbers of channels that convolutions take it for, where one of these needs it."""
    found: dict[str, set[int]] = {}
    needed: set[str] = set()
    for node in all_nodes(model):
        if node.op_type not in ("Conv", "ConvTranspose") or node.domain != "":
            continue
        data, weights = node.inputs[0], static_shape(node.inputs[1])
        size = data.shape[1] if data is not None and data.shape is not None and len(data.shape) > 1 else None
        if isinstance(size, ir.SymbolicDim) and size.value is not None and weights is not None:
            groups = node.attributes.get_int("group", 1)
            found.setdefault(size.value, set()).add(weights[1] * groups if node.op_type == "Conv" else weights[0])
            if node.op_type == "ConvTranspose" or groups > 1:
                needed.add(size.value)
    return {name: sizes for name, sizes in found.items() if name in needed}


def _tensors(model: ir.Model) -> Iterator[ir.Value]:
    yield from model.graph.inputs
    for node in all_nodes(model):
        yield from node.outputs
