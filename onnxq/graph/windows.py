"""The windows of a pool along each axis of its input."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

__all__ = ["Axis", "axes_of"]


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis that windows move along.

    Attributes:
        size: of the input.
        begin: padding in front.
        end: padding behind.
        window: elements of a window.
        step: from one window to the next.
        reach: how far windows can move within the padded input.
    """

    size: int
    begin: int
    end: int
    window: int
    step: int
    reach: int


def axes_of(node: ir.Node) -> list[Axis] | None:
    """The axes of a pool with explicit padding; ``None`` where sizes are not known, or the padding is automatic."""
    get, x = node.attributes, node.inputs[0]
    kernel = get.get_ints("kernel_shape", ())
    count = len(kernel)
    sizes = x.shape[2:] if x is not None and x.shape is not None else ()
    if len(sizes) != count or get.get_string("auto_pad", "NOTSET") != "NOTSET":
        return None
    strides = get.get_ints("strides", ()) or (1,) * count
    dilations = get.get_ints("dilations", ()) or (1,) * count
    pads = get.get_ints("pads", ()) or (0,) * 2 * count
    found = []
    for size, window, step, gap, begin, end in zip(
        sizes, kernel, strides, dilations, pads[:count], pads[count:], strict=True
    ):
        if not isinstance(size, int):
            return None
        found.append(Axis(size, begin, end, window, step, size + begin + end - ((window - 1) * gap + 1)))
    return found
