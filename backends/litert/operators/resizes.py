"""Resize of pictures: to the nearest element, or between the two next to it."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from onnxq.backends.litert.placed import RefusedError, last
from onnxq.backends.litert.translation import Translation

__all__ = ["OPERATORS"]

_PLANES = 4
_TOLERANCE = 1e-6
"""Of a scale beside the ratio of the sizes."""
_HALF = ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric")


def resize(t: Translation, node: ir.Node) -> None:
    """RESIZE_NEAREST_NEIGHBOR or RESIZE_BILINEAR."""
    before, after = t.shape(node.inputs[0]), t.shape(node.outputs[0])
    get = node.attributes
    mode = get.get_string("mode", "nearest")
    coordinates = get.get_string("coordinate_transformation_mode", "half_pixel")
    if len(before) != _PLANES or before[:2] != after[:2]:
        raise RefusedError("TensorFlow Lite resizes pictures, over their last two axes")
    if mode not in ("nearest", "linear") or get.get_int("antialias", 0) == 1:
        raise RefusedError(
            f"TensorFlow Lite has no {mode} interpolation{' with antialias' * get.get_int('antialias', 0)}"
        )
    _require_ratios(t, node, before, after)
    x = t.read(node.inputs[0], last(_PLANES))
    if mode == "nearest":
        options = _nearest(node, coordinates, before, after)
        kind = "RESIZE_NEAREST_NEIGHBOR"
    else:
        options = _linear(coordinates, after)
        kind = "RESIZE_BILINEAR"
    value = node.outputs[0]
    grid = t.grid_of(value)
    x = t.requantized(x, grid) if grid is not None else x
    t.write(value, kind, [x.index, t.list_of(after[2:])], last(_PLANES), **options)


def _require_ratios(t: Translation, node: ir.Node, before: tuple[int, ...], after: tuple[int, ...]) -> None:
    """TensorFlow Lite computes with the ratio of the sizes."""
    scales = t.numbers(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] is not None else None
    if scales is None or scales.size != len(before):
        return
    for old, new, scale in zip(before, after, scales, strict=True):
        if abs(new / old - float(scale)) > _TOLERANCE * float(scale):
            raise RefusedError(f"TensorFlow Lite resizes by the ratio of the sizes, {new / old:g}, not by {scale:g}")


def _linear(coordinates: str, after: tuple[int, ...]) -> dict[str, Any]:
    if coordinates in _HALF and not (coordinates == "pytorch_half_pixel" and 1 in after[2:]):
        return {"halfPixelCenters": True}
    if coordinates == "align_corners":
        return {"alignCorners": True}
    if coordinates == "asymmetric":
        return {}
    raise RefusedError(f"TensorFlow Lite has no coordinates {coordinates}")


def _nearest(node: ir.Node, coordinates: str, before: tuple[int, ...], after: tuple[int, ...]) -> dict[str, Any]:
    """What it is told: it takes the element below of asymmetric coordinates, or the one that half pixels lie in."""
    rounding = node.attributes.get_string("nearest_mode", "round_prefer_floor")
    whole = all(new % old == 0 for old, new in zip(before, after, strict=True))
    if coordinates == "asymmetric" and rounding == "floor":
        return {}
    if coordinates in _HALF and (rounding == "round_prefer_ceil" or (whole and rounding == "round_prefer_floor")):
        return {"halfPixelCenters": True}
    if coordinates == "align_corners" and rounding == "round_prefer_ceil":
        return {"alignCorners": True}
    raise RefusedError(f"TensorFlow Lite takes other elements than {coordinates} coordinates and {rounding} do")


OPERATORS = {"Resize": resize}
