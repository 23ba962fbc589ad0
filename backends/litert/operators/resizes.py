"""Resize: to the nearest elements along any axes, or between the two next to each along one axis or two."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.backends.litert.operators.convolutions import raised
from onnxq.backends.litert.operators.picking import along
from onnxq.backends.litert.placed import Order, RefusedError, last, plain, reordered
from onnxq.backends.litert.translation import Translation

__all__ = ["OPERATORS"]

_LINES, _PLANES = 3, 4
_TOLERANCE = 1e-6
"""Of a scale beside the ratio of the sizes."""
_HALF = ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric")
_ROUNDED: Mapping[str, Callable[[NDArray[np.float32]], NDArray[np.float32]]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_floor": lambda at: np.ceil(at - np.float32(0.5)),
    "round_prefer_ceil": lambda at: np.floor(at + np.float32(0.5)),
}


def resize(t: Translation, node: ir.Node) -> None:
    """RESIZE_BILINEAR, RESIZE_NEAREST_NEIGHBOR, or GATHER of the nearest elements."""
    get = node.attributes
    mode, antialias = get.get_string("mode", "nearest"), get.get_int("antialias", 0) == 1
    if mode not in ("nearest", "linear") or antialias:
        raise RefusedError(f"TensorFlow Lite has no {mode} interpolation{' with antialias' if antialias else ''}")
    if get.get_string("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise RefusedError("it keeps the ratio of its sizes, to which TensorFlow Lite's do not")
    if 0 in t.shape(node.outputs[0]):
        raise RefusedError("its result has no elements")
    (_nearest if mode == "nearest" else _linear)(t, node)


def _scales(t: Translation, node: ir.Node) -> NDArray[np.float32]:
    """For each axis, those that are given, or the ratios of the sizes."""
    before, after = (np.array(t.shape(value), np.float32) for value in (node.inputs[0], node.outputs[0]))
    scales = after / before
    given = t.numbers(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] is not None else None
    if given is not None and given.size:
        axes = node.attributes.get_ints("axes", ()) or range(len(scales))
        scales[list(axes)] = given.astype(np.float32)
    return scales


def _linear(t: Translation, node: ir.Node) -> None:
    value = node.outputs[0]
    before, after = t.shape(node.inputs[0]), t.shape(value)
    order = _planes(before, after)
    for old, new, scale in zip(before, after, _scales(t, node), strict=True):
        if abs(new / old - float(scale)) > _TOLERANCE * float(scale):
            raise RefusedError(f"TensorFlow Lite resizes by the ratio of the sizes, {new / old:g}, not by {scale:g}")
    options = _between(node.attributes.get_string("coordinate_transformation_mode", "half_pixel"), before, after)
    x, sizes = t.read(node.inputs[0], order), reordered(after, order)
    x, wide = (raised(t, x), (sizes[0], 1, *sizes[1:])) if len(order) == _LINES else (x, sizes)
    grid = t.grid_of(value)
    made = t.new(value, x.order, wide, grid=x.grid if grid is not None else None)
    t.flat.operator("RESIZE_BILINEAR", [x.index, t.list_of(wide[1:3])], [made.index], **options)
    # only then on the grid of the result: a smaller one cuts off what is between the elements, not these
    made = t.requantized(made, grid, value.name or "") if grid is not None else made
    t.place(value, t.reshaped(made, sizes, order, value.name or ""))


def _planes(before: tuple[int, ...], after: tuple[int, ...]) -> Order:
    """An order with what is resized in between batch and channels."""
    changed = {axis for axis, (old, new) in enumerate(zip(before, after, strict=True)) if old != new}
    rank = len(before)
    if rank == _PLANES and changed <= {1, 2} and not changed <= {2}:
        return plain(rank)
    if rank in (_LINES, _PLANES) and changed <= set(range(2, rank)):
        return last(rank)
    raise RefusedError("TensorFlow Lite interpolates lines and pictures")


def _between(coordinates: str, before: tuple[int, ...], after: tuple[int, ...]) -> dict[str, Any]:
    alone = any(new == 1 != old for old, new in zip(before, after, strict=True))  # then PyTorch takes the first
    if coordinates in _HALF and not (coordinates == "pytorch_half_pixel" and alone):
        return {"halfPixelCenters": True}
    if coordinates == "align_corners":
        return {"alignCorners": True}
    if coordinates == "asymmetric":
        return {}
    raise RefusedError(f"TensorFlow Lite has no coordinates {coordinates}")


def _nearest(t: Translation, node: ir.Node) -> None:
    value = node.outputs[0]
    before, after = t.shape(node.inputs[0]), t.shape(value)
    positions = _positions(t, node, before, after)
    rank, grid = len(before), t.grid_of(value)
    x = t.read(node.inputs[0], last(rank)) if rank in (_LINES, _PLANES) else t.read(node.inputs[0])
    x = t.requantized(x, grid) if grid is not None else x
    pictures = rank == _PLANES and before[:2] == after[:2]
    for options in ({"halfPixelCenters": True}, {"alignCorners": True}, {}) if pictures else ():
        found = [_taken(old, new, options) for old, new in zip(before, after, strict=True)]
        if all(np.array_equal(one, other) for one, other in zip(found, positions, strict=True)):
            size = t.list_of(after[2:])
            t.write(value, "RESIZE_NEAREST_NEIGHBOR", [x.index, size], x.order, **options)
            return
    for stored, axis in enumerate(x.order):
        x = along(t, x, stored, positions[axis])
    t.place(value, x)


def _positions(
    t: Translation, node: ir.Node, before: tuple[int, ...], after: tuple[int, ...]
) -> list[NDArray[np.int64]]:
    """For each axis the elements that are taken, computed in float32 as onnxruntime does."""
    get = node.attributes
    coordinates = get.get_string("coordinate_transformation_mode", "half_pixel")
    rounded = _ROUNDED[get.get_string("nearest_mode", "round_prefer_floor")]
    found = []
    for old, new, scale in zip(before, after, _scales(t, node), strict=True):
        at = rounded(_coordinates(coordinates, old, new, scale)).clip(0, old - 1).astype(np.int64)
        found.append(np.arange(old) if old == new and scale == 1 else at)
    return found


def _coordinates(kind: str, old: int, new: int, scale: np.float32) -> NDArray[np.float32]:
    half, at = np.float32(0.5), np.arange(new, dtype=np.float32)
    if kind == "asymmetric":
        return np.asarray(at / scale, np.float32)
    if kind == "align_corners":
        return np.asarray(at * np.float32(old - 1) / np.float32(max(new - 1, 1)), np.float32)
    if kind == "pytorch_half_pixel" and new == 1:
        return np.zeros(1, np.float32)
    if kind not in _HALF:
        raise RefusedError(f"TensorFlow Lite has no coordinates {kind}")
    if kind == "half_pixel_symmetric" and abs(new / old - float(scale)) > _TOLERANCE * float(scale):
        raise RefusedError("its symmetric coordinates depend on what its scale leaves out")
    return np.asarray((at + half) / scale - half, np.float32)


def _taken(old: int, new: int, options: dict[str, bool]) -> NDArray[np.int64]:
    """The elements that TensorFlow Lite takes along an axis."""
    at, half = np.arange(new, dtype=np.float32), np.float32(0.5)
    if options.get("alignCorners") and new > 1:
        places = np.floor(at * np.float32((old - 1) / (new - 1)) + half)
    else:
        places = np.floor((at + half * bool(options.get("halfPixelCenters"))) * np.float32(old / new))
    return np.asarray(np.minimum(places, old - 1), np.int64)


OPERATORS = {"Resize": resize}
