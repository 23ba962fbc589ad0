"""Float models as the HTP computes them rightly."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.backends.qnn.lacks import flat, resizes_pictures, scales_are_ratios
from onnxq.backends.qnn.narrow_rows import widen_rows
from onnxq.backends.qnn.small_kernels import ungroup_small_kernels
from onnxq.graph.note import Note
from onnxq.graph.passes.divisions_of_one import divisions_of_one
from onnxq.graph.passes.flatten_products import flatten_products, is_deep_product
from onnxq.graph.passes.flatten_rows import flatten_rows
from onnxq.graph.passes.fuse_gelu import fuse_gelu
from onnxq.graph.passes.fuse_layernorm import fuse_layernorm
from onnxq.graph.passes.lone_norms import lone_norms
from onnxq.graph.passes.merge_axes import merge_axes
from onnxq.graph.passes.nearest_gathers import is_nearest, nearest_gathers
from onnxq.graph.passes.padded_channels import padded_channels
from onnxq.graph.passes.padded_means import padded_means
from onnxq.graph.passes.plain_means import plain_means, rounds_up
from onnxq.graph.passes.positive_indices import counts_from_the_end, positive_indices
from onnxq.graph.values import constant_array, input_of, static_shape

__all__ = ["ends_at_its_result", "gather_is_right", "mean_is_right", "product_is_flat", "resize_is_right", "rewrite"]

_MOST_DIMENSIONS = 4
"""Of a product of two activations, and of a shuffle of channels in front of a Concat: those of five the emulator
computes wrongly without a word."""


def product_is_flat(node: ir.Node) -> str | None:
    """A product of four dimensions at most; those of five the HTP computes wrongly."""
    if is_deep_product(node, _MOST_DIMENSIONS):
        return "the HTP computes products of five dimensions wrongly; fixed sizes would let them be four"
    return None


_NEAREST = frozenset(
    {
        ("asymmetric", "floor"),
        ("asymmetric", "round_prefer_floor"),
        ("half_pixel", "round_prefer_ceil"),
        ("pytorch_half_pixel", "round_prefer_floor"),
    }
)
"""Coordinates and rounding of Resize to the nearest element that the emulator computes as they are defined; of other
than four dimensions it has the first alone."""


def takes_others(node: ir.Node) -> bool:
    """Whether the HTP takes other elements: it rounds halves in its own way, and there may be none."""
    if not is_nearest(node):
        return False
    coordinates = node.attributes.get_string("coordinate_transformation_mode", "half_pixel")
    rounding = node.attributes.get_string("nearest_mode", "round_prefer_floor")
    before, after = static_shape(node.inputs[0]) or (), static_shape(node.outputs[0]) or ()
    if before and len(before) != 4:
        return (coordinates, rounding) != ("asymmetric", "floor")
    if (coordinates, rounding) in _NEAREST:
        return False
    scales = constant_array(input_of(node, 2))
    if scales is not None and scales.size:
        whole = bool((scales % 1 == 0).all())
    else:
        whole = bool(before and after) and all(new % old == 0 for old, new in zip(before, after, strict=True))
    return not (whole and coordinates.endswith("half_pixel") and rounding.startswith("round"))


def resize_is_right(node: ir.Node) -> str | None:
    """A Resize that the HTP computes as it is defined: elements that it takes too, scales that are ratios of sizes."""
    if takes_others(node):
        return "the HTP takes other elements than this Resize; fixed sizes would let them be gathered"
    if not is_nearest(node) and not scales_are_ratios(node):
        return "the HTP takes the ratio of the sizes for its scales, which is another"
    return resizes_pictures(node)


def mean_is_right(node: ir.Node) -> str | None:
    """An AveragePool whose windows end where its input does, padding included."""
    if rounds_up(node):
        return "the HTP computes windows beyond its input wrongly; sizes that fit would leave none"
    return None


def lies_side_by_side(node: ir.Node) -> bool:
    """Whether the windows of a pool lie side by side, with padding in front: the HTP computes others of these."""
    get = node.attributes
    kernel = tuple(get.get_ints("kernel_shape", ()))
    return tuple(get.get_ints("strides", ())) == kernel and any(get.get_ints("pads", ())[: len(kernel)])


def ends_at_its_result(node: ir.Node) -> bool:
    """AveragePool whose windows lie side by side, with even sides above 2.

    The HTP makes two pools of such a one, and rounds between them in the scale of the result: what the first pool gives
    beyond that is cut there, in 8 and in 16 bits. Right are other windows, those with padding, a single window for all
    of the input, GlobalAveragePool and ReduceMean.
    """
    get = node.attributes
    kernel = tuple(get.get_ints("kernel_shape", ()))
    if len(kernel) != 2 or any(side < 4 or side % 2 for side in kernel) or any(get.get_ints("pads", ())):
        return False
    if tuple(get.get_ints("strides", ())) != kernel or any(step != 1 for step in get.get_ints("dilations", ())):
        return False
    sizes = static_shape(node.inputs[0])
    return sizes is None or any(size >= 2 * side for size, side in zip(sizes[2:], kernel, strict=True))


def gather_is_right(node: ir.Node) -> str | None:
    """One whose indices do not count from the end."""
    if counts_from_the_end(node):
        return "the HTP takes no indices that count from the end; fixed sizes would let them be positive"
    return None


def rewrite(model: ir.Model) -> list[Note]:
    """Write GELU and layer normalization as the operators that the HTP has, and what it computes wrongly otherwise.

    Of five dimensions the HTP has few operators; what is computed row by row or element by element needs but four.

    A Pad of channels behind a pool, a Resize or a DepthToSpace, of numbers below 0 as well, it fills with the lowest.

    Of a Reciprocal onnxruntime-qnn makes a division of 1, with the 1 on the grid of the divisor: it divides 0.14 where
    that grid ends at 0.14, and 0 where its step is above 2.

    Batch normalizations alone are depthwise convolutions, in integers: as they are the HTP computes them in float.

    Of rows of 8, 16 or 32 bytes a Gather of 32 indices or more picks others.

    Of depthwise convolutions of small kernels and strides of 2 it may compute the last channels wrongly.

    Args:
        model: changed in place, tensors that are left keep their names.
    """
    return [
        *fuse_gelu(model),
        *fuse_layernorm(model),
        *lone_norms(model),
        *flatten_products(model, _MOST_DIMENSIONS),
        *flatten_rows(model, _MOST_DIMENSIONS, lambda node: flat(node) is not None),
        *merge_axes(model, _MOST_DIMENSIONS),
        *nearest_gathers(model, takes_others),
        *plain_means(model),
        *padded_channels(model),
        *padded_means(model, lies_side_by_side),
        *positive_indices(model),
        *widen_rows(model),
        *divisions_of_one(model),
        *ungroup_small_kernels(model),
    ]
