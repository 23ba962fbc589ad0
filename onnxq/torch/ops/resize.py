"""Resize and Upsample, one axis after the other, as ONNX defines them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import torch

from onnxq.torch.attributes import Inputs, at, floats, ints, number
from onnxq.torch.ops.math import Op

__all__ = ["OPS", "unsupported"]

Tensor = torch.Tensor

_TRANSFORMS = ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric", "align_corners", "asymmetric")
_TIE = 1e-6
"""A position this near to the middle between two elements counts as it, for onnxruntime 1.31 too."""


def unsupported(node: ir.Node) -> str | None:
    """What of a node's attributes cannot be run here; None where all can."""
    if node.op_type != "Resize":
        return None
    how = node.attributes.get_string("coordinate_transformation_mode", "half_pixel")
    if how not in _TRANSFORMS:
        return f"coordinate_transformation_mode={how}"
    if node.attributes.get_int("antialias", 0):
        return "antialias"
    if node.attributes.get_string("keep_aspect_ratio_policy", "stretch") != "stretch":
        return "keep_aspect_ratio_policy"
    return None


def _resize(node: ir.Node, inputs: Inputs, opset: int) -> tuple[Tensor]:
    """Computed in float32, as onnxruntime does: lengths and taps depend on how sizes and positions are rounded."""
    x = inputs[0]
    assert x is not None
    how, scales, sizes = _asked(node, inputs, opset)
    axes = [axis % x.ndim for axis in ints(node, "axes", range(x.ndim))]
    before = [x.shape[axis] for axis in axes]
    if sizes is None:
        factors = np.asarray(scales, np.float32)
        after = [int(n) for n in factors * np.asarray(before, np.float32)]
    else:
        after = sizes
        factors = np.array([np.float32(n) / np.float32(m) for n, m in zip(after, before, strict=True)], np.float32)
    if after == before:
        return (x,)
    for axis, size, length, scale in zip(axes, before, after, factors, strict=True):
        if length != size or scale != 1.0:
            where = _positions(how, size, length, float(scale))
            x = _along(node, x, axis, where, bool(scale < 1), opset)
    return (x,)


def _asked(node: ir.Node, inputs: Inputs, opset: int) -> tuple[str, list[float], list[int] | None]:
    """The coordinates that a Resize transforms by, and its scales, or its sizes where it has those."""
    if node.op_type == "Upsample" or opset < 11:
        given = at(inputs, 1)
        return "asymmetric", floats(node, "scales", []) if given is None else _numbers(given), None
    how = node.attributes.get_string("coordinate_transformation_mode", "half_pixel") or "half_pixel"
    scales, sizes = at(inputs, 2), at(inputs, 3)
    whole = None if sizes is None or not sizes.numel() else [int(n) for n in sizes.tolist()]
    return how, [] if scales is None else _numbers(scales), whole


def _numbers(given: Tensor) -> list[float]:
    return [float(n) for n in given.tolist()]


def _positions(how: str, size: int, length: int, scale: float) -> Tensor:
    """Where in the input each output element lies, (length,) float32.

    Args:
        how: coordinate_transformation_mode.
        size: of the input.
        length: of the output.
        scale: a number of float32.
    """
    index, factor = torch.arange(length, dtype=torch.float32), torch.tensor(scale, dtype=torch.float32)
    if how == "asymmetric":
        return index / factor
    if how == "align_corners":
        return index * (size - 1) / max(length - 1, 1)
    if how == "pytorch_half_pixel" and length == 1:
        return torch.zeros_like(index)
    x = (index + 0.5) / factor - 0.5
    if how == "half_pixel_symmetric":
        x = x + size / 2 * (1 - length / (factor * size))
    return x


def _along(node: ir.Node, x: Tensor, axis: int, where: Tensor, smaller: bool, opset: int) -> Tensor:
    size, length = x.shape[axis], len(where)
    mode = node.attributes.get_string("mode", "nearest")
    if mode == "nearest":
        kind = node.attributes.get_string("nearest_mode", "round_prefer_floor")
        if node.op_type == "Upsample" or opset < 11:
            kind = "ceil" if smaller else "floor"
        middle = torch.floor(where) + 0.5
        where = torch.where((where - middle).abs() < _TIE, middle, where)
        index = {
            "round_prefer_floor": lambda v: torch.ceil(v - 0.5),
            "round_prefer_ceil": lambda v: torch.floor(v + 0.5),
            "floor": torch.floor,
            "ceil": torch.ceil,
        }[kind or ""](where)
        return x.index_select(axis, index.clamp(0, size - 1).to(torch.int64).to(x.device))
    if mode == "linear":
        where = where.clamp(0, size - 1)
        base = torch.floor(where)
        weights = torch.stack([1 - (where - base), where - base])
        taps = torch.stack([base, base + 1])
    else:
        weights, taps = _cubic(node, where, size)
    view = [1] * x.ndim
    view[axis] = length
    result: Tensor | None = None
    for weight, tap in zip(weights, taps, strict=True):
        index = tap.clamp(0, size - 1).to(torch.int64).to(x.device)
        part = x.index_select(axis, index) * weight.to(x.dtype).to(x.device).reshape(view)
        result = part if result is None else result + part
    assert result is not None
    return result


def _cubic(node: ir.Node, where: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Weights and positions of the four taps (Keys, 1981), each (4, length)."""
    a = number(node, "cubic_coeff_a", -0.75)
    base = torch.floor(where)
    t = where - base
    near = lambda d: ((a + 2) * d - (a + 3)) * d * d + 1  # noqa: E731
    far = lambda d: ((a * d - 5 * a) * d + 8 * a) * d - 4 * a  # noqa: E731
    weights = torch.stack([far(t + 1), near(t), near(1 - t), far(2 - t)])
    taps = torch.stack([base - 1, base, base + 1, base + 2])
    if node.attributes.get_int("exclude_outside", 0):
        weights = torch.where((taps < 0) | (taps >= size), torch.zeros_like(weights), weights)
        weights = weights / weights.sum(0)
    return weights, taps


OPS: dict[str, Op] = {"Resize": _resize, "Upsample": _resize}
"""Operator → function of the node, its inputs and the version of the operator set."""
