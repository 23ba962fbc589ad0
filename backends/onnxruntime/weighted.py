"""Cubic Resizes, and those of volumes, as products with the weights of their rows and columns, or otherwise.

onnxruntime 1.32 takes 45 to 88 ns for each element that a cubic one makes; of volumes 2.5 for what is interpolated, and
7 for what is repeated. The weights are what it gives for the columns of an identity, so that they are its own whatever
the attributes say. In a product, an element that is infinite or no number makes its row and column no numbers, not its
surroundings alone.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from onnxq.backends.onnxruntime.kernels import is_unpacked
from onnxq.backends.onnxruntime.over_channels import is_quantized
from onnxq.graph.alone import run_alone
from onnxq.graph.passes.chain import Chain
from onnxq.graph.values import AnyArray, constant_array, size_along

__all__ = ["cubic", "of_volumes"]

_MOST = 1 << 16
"""Weights of both axes: the file grows by them, and products of more take longer."""
_REACH = 2
"""Elements to each side of one that those in its place are weighted sums of."""
_LARGEST = 8
"""Times as large: 64 elements in the place of one."""
_REGULAR = ("asymmetric", "half_pixel", "pytorch_half_pixel")
"""Places of elements that repeat where each becomes as many."""
_ANY_IR = 8
"""Version of a model of one node, which onnxruntime loads with any opset."""
_SWAP = ir.AttrInt64s("perm", (0, 1, 3, 2))


def cubic(chain: Chain) -> ir.Value | None:
    """A cubic Resize, antialiased or not."""
    asked = _asked(chain, 4)
    if asked is None:
        return None
    rows, columns = (_weights(chain, axis, asked) for axis in (2, 3))
    if rows is not None and columns is not None and rows.size + columns.size <= _MOST:
        return _as_products(chain, rows, columns)
    return _as_convolution(chain, asked) if asked.by_scale else None


def _as_products(chain: Chain, rows: AnyArray, columns: AnyArray) -> ir.Value:
    """Of pictures of known size: 58 → 0.5 ns for each element of 32 pictures of 32x32 twice as large."""
    made = chain.put("MatMul", chain.x, chain.constant("columns", columns.T))
    if chain.x.shape is not None and isinstance(chain.x.shape[0], int):
        return chain.put("MatMul", chain.constant("rows", rows), made)
    # onnxruntime 1.23 makes no product of a matrix and an empty batch, but of an empty batch and a matrix
    turned = chain.put("MatMul", chain.put("Transpose", made, perm=_SWAP), chain.constant("rows", rows.T))
    return chain.put("Transpose", turned, perm=_SWAP)


def _as_convolution(chain: Chain, asked: _Asked) -> ir.Value | None:
    """Of other pictures, where each element becomes as many along both axes: 46 → 1.2 ns of 3 of 256x256, 4 times.

    What lies beyond an edge counts as the edge does. Three times as large, onnxruntime's places are off by roundings,
    farther from the corner by more: 1e-5 of the values at the 600th.
    """
    get, scales = chain.node.attributes, asked.numbers
    step = int(scales[2])
    channels = size_along(chain.x, 1)
    regular = get.get_string("coordinate_transformation_mode", "half_pixel") in _REGULAR
    if channels is None or not regular or get.get_int("exclude_outside", 0) == 1 or is_unpacked(chain.x):
        return None
    if scales[2] != scales[3] or scales[2] != step or not 1 < step <= _LARGEST:
        return None
    middle = 2 * _REACH
    weights = _weights(chain, 2, asked, size=2 * middle + 1)
    if weights is None:
        return None
    phases = weights[step * middle : step * (middle + 1), middle - _REACH : middle + _REACH + 1]
    taps = np.einsum("pk,ql->pqkl", phases, phases).reshape(-1, 1, *(2 * _REACH + 1,) * 2)
    pads = chain.integers(*((0, 0, _REACH, _REACH) * 2))
    padded = chain.put("Pad", chain.x, pads, mode=ir.AttrString("mode", "edge"))
    group = ir.AttrInt64("group", channels)
    made = chain.put("Conv", padded, chain.constant("taps", np.tile(taps, (channels, 1, 1, 1))), group=group)
    return chain.put("DepthToSpace", made, blocksize=ir.AttrInt64("blocksize", step), mode=ir.AttrString("mode", "CRD"))


def of_volumes(chain: Chain) -> ir.Value | None:
    """A Resize of (N, C, D, H, W) as that of D and that of the others, 7 → .3 for what is repeated; or as products, 2.5
    → .5 for what is interpolated. Half as large is faster as it is: 1.4 to 6 times.
    """
    node, asked, dims = chain.node, _asked(chain, 5), list(chain.x.shape or ())
    if asked is None or node.attributes.get_int("antialias", 0) == 1:
        return None
    given, by_scale, made = asked.numbers, asked.by_scale, node.outputs[0].shape
    channels, deep, high, wide = (dim if isinstance(dim, int) else 0 for dim in dims[1:])
    after = [dim if isinstance(dim, int) else 0 for dim in list(made)[2:]] if made is not None else []
    if not channels or not math.prod((deep, high, wide, *after)) or len(after) != 3:
        return None
    interpolates = node.attributes.get_string("mode", "nearest") == "linear"
    if interpolates and math.prod(after) <= math.prod((deep, high, wide)):
        return None
    if interpolates and isinstance(dims[0], int):
        weights = [_weights(chain, axis, asked) for axis in (2, 3, 4)]
        known = [array for array in weights if array is not None]
        if len(known) == 3 and sum(array.size for array in known) <= _MOST:
            return _as_three_products(chain, known, channels, after)
    flat = chain.put("Reshape", chain.x, chain.integers(0, channels, deep, high * wide))
    lengths = (*given[:3], 1 if by_scale else high * wide)
    flat = _resized(chain, flat, np.array(lengths, given.dtype), by_scale=by_scale)
    planes = chain.put("Reshape", flat, chain.integers(0, channels * after[0], high, wide))
    edges = (given[0], 1 if by_scale else channels * after[0], *given[3:])
    planes = _resized(chain, planes, np.array(edges, given.dtype), by_scale=by_scale)
    return chain.put("Reshape", planes, chain.integers(0, channels, *after))


def _resized(chain: Chain, x: ir.Value, given: AnyArray, *, by_scale: bool) -> ir.Value:
    """Another Resize like that of a chain."""
    numbers = chain.constant("by_axis", given)
    made = chain.put("Resize", x, None, *((numbers,) if by_scale else (None, numbers)))
    chain.made[-1].attributes.update(chain.node.attributes)
    return made


def _as_three_products(chain: Chain, weights: list[AnyArray], channels: int, after: list[int]) -> ir.Value:
    deep, rows, columns = weights
    made = chain.put("MatMul", chain.x, chain.constant("columns", columns.T))
    made = chain.put("MatMul", chain.constant("rows", rows), made)
    made = chain.put("Reshape", made, chain.integers(0, channels, deep.shape[1], after[1] * after[2]))
    made = chain.put("MatMul", chain.constant("layers", deep), made)
    return chain.put("Reshape", made, chain.integers(0, channels, *after))


class _Asked(NamedTuple):
    """What a Resize of places alone is told, for each axis.

    Attributes:
        numbers: scales or sizes.
        by_scale: whether they are scales.
    """

    numbers: AnyArray
    by_scale: bool


def _asked(chain: Chain, rank: int) -> _Asked | None:
    """What a Resize of so many axes is told; None where it gives no sums of elements weighted by their places."""
    node, dims = chain.node, list(chain.x.shape or ())
    scales, sizes = (constant_array(chain.input(index)) for index in (2, 3))
    by_scale = scales is not None and scales.size > 0
    numbers = scales if by_scale else sizes
    if numbers is None or len(dims) != rank or numbers.size != rank or not _is_plain(node) or is_quantized(node):
        return None
    return _Asked(numbers, by_scale) if list(numbers[:2]) == ([1, 1] if by_scale else dims[:2]) else None


def _is_plain(node: ir.Node) -> bool:
    get = node.attributes.get_string
    if "axes" in node.attributes or get("keep_aspect_ratio_policy", "stretch") != "stretch":
        return False
    return get("coordinate_transformation_mode", "half_pixel") != "tf_crop_and_resize"


def _weights(chain: Chain, axis: int, asked: _Asked, size: object = None) -> AnyArray | None:
    """Of each place along an axis of the result, for each place of the input: (places, size); None: none, or many.

    Args:
        chain: of the Resize.
        axis: counted from 0.
        asked: what it is told.
        size: of another input; None: that of its own.
    """
    if size is None and chain.x.shape is not None:
        size = chain.x.shape[axis]
    if not isinstance(size, int) or not 0 < size**2 <= _MOST:
        return None
    alone = np.array([1, 1, 1, 1] if asked.by_scale else [1, 1, size, size], asked.numbers.dtype)
    alone[2] = asked.numbers[axis]
    told = (alone,) if asked.by_scale else (None, alone)
    inputs = [np.eye(size, dtype=np.float32)[np.newaxis, np.newaxis], None, *told]
    made = run_alone(chain.node, inputs, opset=chain.opset, ir_version=_ANY_IR)
    return None if made is None else made[0, 0]
