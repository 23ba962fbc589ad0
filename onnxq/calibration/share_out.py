"""Share out tensors over several runs, so that what one run gives back stays under a memory budget."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.calibration.taps import tap
from onnxq.ort.session import open_anyhow

__all__ = ["known_bytes", "share_out", "tensor_bytes"]

_FLOAT_BYTES = 4

Key = TypeVar("Key", bound=Hashable)


def share_out(tensors: Sequence[Key], sizes: Mapping[Key, int], budget: int) -> list[list[Key]]:
    """Consecutive groups of tensors whose bytes add up to no more than a budget.

    Args:
        tensors: tensor names (or other keys of them), in the order of the graph.
        sizes: bytes of each; a tensor that is missing counts as 0.
        budget: bytes. A tensor larger than this has a group of its own.

    Returns:
        The groups; one (perhaps empty) if all fit.
    """
    groups: list[list[Key]] = [[]]
    total = 0
    for name in tensors:
        size = sizes.get(name, 0)
        if groups[-1] and total + size > budget:
            groups.append([])
            total = 0
        groups[-1].append(name)
        total += size
    return groups


def tensor_bytes(
    model: ir.Model, tensors: Sequence[str], feeds: Mapping[str, NDArray[Any]], **session_options: Any
) -> dict[str, int]:
    """Bytes of tensors for one sample.

    Known shapes need no run: symbolic dimensions are those of the inputs' arrays. For the others the model is run
    once with ``Size`` nodes on them, so that none of them is held.

    Args:
        model: the model, not modified.
        tensors: tensor names.
        feeds: input name to array, a sample.
        **session_options: passed on to :class:`onnxq.ort.session.Session`.

    Returns:
        Tensor name to bytes; unobservable ones are missing.

    Raises:
        ExecutionError: the model cannot be loaded or run.
    """
    sizes = known_bytes(model, tensors, feeds)
    unknown = [name for name in tensors if name not in sizes]
    if unknown:
        sizes.update(_measure(model, unknown, feeds, **session_options))
    return sizes


def known_bytes(model: ir.Model, tensors: Sequence[str], feeds: Mapping[str, NDArray[Any]]) -> dict[str, int]:
    """Bytes of tensors for one sample, as far as shapes tell; float32 is taken for granted.

    Args:
        model: the model, not modified.
        tensors: tensor names.
        feeds: input name to array, a sample.

    Returns:
        Tensor name to bytes, without those of unknown shape and those inside subgraphs.
    """
    symbols: dict[str, int] = {}
    for value in model.graph.inputs:
        array = feeds.get(value.name or "")
        if array is not None and value.shape is not None and len(value.shape) == np.ndim(array):
            for dim, extent in zip(value.shape, np.shape(array), strict=True):
                if isinstance(dim, ir.SymbolicDim) and isinstance(dim.value, str):
                    symbols[dim.value] = extent
    shapes = {value.name: value.shape for node in model.graph for value in node.outputs}
    shapes.update({value.name: value.shape for value in model.graph.inputs})
    sizes: dict[str, int] = {}
    for name in tensors:
        elements = _elements(shapes.get(name), symbols)
        if elements is not None:
            sizes[name] = elements * _FLOAT_BYTES
    return sizes


def _elements(shape: ir.Shape | None, symbols: Mapping[str, int]) -> int | None:
    if shape is None:
        return None
    total = 1
    for dim in shape:
        extent = dim if isinstance(dim, int) else symbols.get(dim.value or "")
        if extent is None:
            return None
        total *= extent
    return total


def _measure(
    model: ir.Model, tensors: Sequence[str], feeds: Mapping[str, NDArray[Any]], **session_options: Any
) -> dict[str, int]:
    tapped = tap(model, tensors, keep_outputs=False)
    graph = tapped.model.graph
    by_name = {value.name: value for value in graph.outputs}
    shown: dict[str, str] = {}
    sizes = []
    for number, (name, output) in enumerate(tapped.outputs.items()):
        node = ir.Node("", "Size", [by_name[output]], name=f"tap/size_{number}")
        node.outputs[0].name = shown[name] = f"tap/size_{number}"
        node.outputs[0].type = ir.TensorType(ir.DataType.INT64)
        graph.append(node)
        sizes.append(node.outputs[0])
    if not sizes:
        return {}
    graph.outputs.clear()
    graph.outputs.extend(sizes)
    session = open_anyhow(tapped.model, **session_options)
    found = session.run(feeds)
    return {name: int(found[output]) * _FLOAT_BYTES for name, output in shown.items()}
