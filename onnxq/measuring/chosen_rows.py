"""Outputs whose rows a TopK picked: a detector's boxes, best first.

Rounding that tells nothing apart puts them in another order, and has others at the end of the list. Compared place by
place, a detector that finds the same objects would have lost everything (3.8 dB, where its rows have 29 dB, and all
objects are found). So each row is compared with the nearest one of the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import constant_array

__all__ = ["Order", "Rows", "chosen_rows", "matched", "order_of", "rows_said"]

_FEWEST = 16
"""Rows; a TopK of fewer picks experts or classes, in an order that means something."""
_MOST, _WIDEST = 4096, 4096
"""Rows, and numbers of a row, beyond which all pairs are too many to look at."""


class Rows(NamedTuple):
    """Where the rows of an output lie.

    Attributes:
        axes: counted from the last: the one that the model says has as many rows as a TopK picks, or those, the first
            left out, that it says no length of.
        counts: how many the TopKs before it pick.
    """

    axes: tuple[int, ...]
    counts: frozenset[int]

    def axis(self, shape: Sequence[int]) -> int | None:
        """The only one of the axes that is as long as a TopK picks; None where that is none of them, or several."""
        found = [axis for axis in self.axes if len(shape) >= -axis and shape[axis] in self.counts]
        return found[0] if len(found) == 1 else None


def chosen_rows(model: ir.Model) -> dict[str, Rows]:
    """Output → where its rows lie, for outputs of floats behind a TopK of as many.

    Args:
        model: constants folded and shapes known, as far as they are: an exporter that cannot follow them behind a TopK
            leaves the number of rows open.
    """
    picked = _picked(model)
    found = {}
    for output in model.graph.outputs:
        wanted = frozenset(picked.get(output, ()))
        dims = list(output.shape) if output.shape is not None and wanted else []
        axes = [axis - len(dims) for axis, dim in enumerate(dims) if dim in wanted]
        axes = axes or [axis - len(dims) for axis, dim in enumerate(dims) if axis and not isinstance(dim, int)]
        if axes and (output.dtype is None or output.dtype.is_floating_point()):
            found[output.name or ""] = Rows(tuple(axes), wanted)
    return found


def _picked(model: ir.Model) -> dict[ir.Value, set[int]]:
    """Tensor → how many the TopKs before it pick."""
    found: dict[ir.Value, set[int]] = {}
    for node in all_nodes(model):
        counts = {count for value in node.inputs if value is not None for count in found.get(value, ())}
        if node.op_type == "TopK" and node.domain == "" and len(node.inputs) > 1:
            given = constant_array(node.inputs[1])
            counts |= {int(count) for count in given.reshape(-1) if count >= _FEWEST} if given is not None else set()
        if counts:
            found.update(dict.fromkeys(node.outputs, counts))
    return found


def matched(reference: NDArray[Any], result: NDArray[Any], along: Rows | None) -> NDArray[Any]:
    """The result with, for each row of the reference, its nearest one in that row's place; itself where it has no rows.

    Args:
        reference: of the float model; each entry of the first axis is a batch of its own, unless rows lie along that.
        result: of the quantized model.
        along: see :func:`chosen_rows`; None where there are no rows.
    """
    order = order_of(reference, result, along)
    if order is None:
        return result
    moved = np.moveaxis(result, order.axis, order.place)
    taken = np.take_along_axis(moved.reshape(order.shape), order.nearest[:, :, None], axis=1).reshape(moved.shape)
    return np.moveaxis(taken, order.place, order.axis)


class Order(NamedTuple):
    """Which row of a result stands for which of the reference.

    Attributes:
        axis: that rows lie along, counted from the last.
        place: where that axis is to be moved.
        shape: of the result then: batches, rows, numbers of a row.
        nearest: for each row of the reference, by batch, the index of that of the result.
    """

    axis: int
    place: int
    shape: tuple[int, int, int]
    nearest: NDArray[np.intp]


def order_of(reference: NDArray[Any], result: NDArray[Any], along: Rows | None) -> Order | None:
    """As :func:`matched`, but the rows alone; None where they stay as they are."""
    axis = along.axis(reference.shape) if along is not None else None
    if axis is None or reference.shape != result.shape or reference.dtype.kind != "f":
        return None
    rows = reference.shape[axis]
    batched = reference.ndim > 1 and reference.ndim + axis > 0
    batches = reference.shape[0] if batched else 1
    width = reference.size // max(rows * batches, 1)
    if (
        not 0 < rows <= _MOST
        or not 0 < width <= _WIDEST
        or not (np.isfinite(reference).all() and np.isfinite(result).all())
    ):
        return None
    place = 1 if batched else 0
    shape = batches, rows, width
    wanted, got = (_as_rows(array, axis, place, shape) for array in (reference, result))
    return Order(axis, place, shape, np.stack([_nearest(a, b) for a, b in zip(wanted, got, strict=True)]))


def rows_said(rows: Iterable[str]) -> list[str]:
    """That rows were matched, as a note."""
    names = ", ".join(map(repr, rows))
    return (
        [f"output {names}: a TopK picks its rows, and each is compared with the nearest of the result"] if rows else []
    )


def _as_rows(array: NDArray[Any], axis: int, place: int, shape: tuple[int, int, int]) -> NDArray[np.float64]:
    return np.moveaxis(array, axis, place).reshape(shape).astype(np.float64)


def _nearest(wanted: NDArray[np.float64], got: NDArray[np.float64]) -> NDArray[np.intp]:
    """For each row the index of the row of ``got`` at the least distance, in units of how much each column varies.

    So a score tells as much as a coordinate, which may be a thousand times larger.
    """
    spread = wanted.std(axis=0)
    spread[spread == 0] = 1.0
    wanted, got = wanted / spread, got / spread
    apart = np.einsum("ij,ij->i", got, got) - 2 * wanted @ got.T  # less the wanted row's own length
    nearest: NDArray[np.intp] = np.argmin(apart, axis=1)
    return nearest
