"""Convolutions and transposed convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.backends.litert.operators.padding import padded, sides_padded
from onnxq.backends.litert.placed import Grid, Placed, RefusedError, last
from onnxq.backends.litert.translation import Translation
from onnxq.backends.litert.windows import Window, is_same, windows_of

__all__ = ["OPERATORS", "bias", "raised"]

_NEAR = 1e-6
"""Between scales that are the same but for their rounding."""
_LINES, _PLANES, _VOLUMES = 3, 4, 5
"""Axes of what a convolution over one, two, three axes reads."""


def convolution(t: Translation, node: ir.Node) -> None:
    """CONV_2D, DEPTHWISE_CONV_2D where each group has one channel, CONV_3D of floats."""
    rank = len(t.shape(node.inputs[0]))
    weight, grid = t.weight(node)
    x = t.read(node.inputs[0], last(rank))
    windows = windows_of(node, x.shape[1:-1], weight.shape[2:], t.shape(node.outputs[0])[2:])
    groups = node.attributes.get_int("group", 1)
    if rank == _VOLUMES:
        _of_volumes(t, node, x, weight, windows, groups)
        return
    if rank not in (_LINES, _PLANES):
        raise RefusedError(f"TensorFlow Lite has no convolution over {rank - 2} axes")
    x, same = _with_padding(t, x, windows)
    if rank == _LINES:
        x, weight = raised(t, x), weight[:, :, None]
        windows = [Window(1, 1, 1, 1, 0, 0), *windows]
    channels = x.shape[-1]
    depthwise = groups == channels and groups > 1
    if depthwise:
        kernel = weight.transpose(1, 2, 3, 0)
        grid = Grid(grid.scale, grid.zero_point, 3) if grid is not None else None
    else:
        kernel = weight.transpose(0, 2, 3, 1)
    name = _name(node, 1)
    inputs = [x.index, t.constant(name, kernel, grid).index, bias(t, node, x, grid, weight.shape[0])]
    options: dict[str, Any] = {
        "padding": "SAME" if same else "VALID",
        "strideH": windows[0].step,
        "strideW": windows[1].step,
        "dilationHFactor": windows[0].gap,
        "dilationWFactor": windows[1].gap,
    }
    if depthwise:
        options["depthMultiplier"] = weight.shape[0] // groups
    else:
        options["grouped"] = groups > 1
    _made(t, node, "DEPTHWISE_CONV_2D" if depthwise else "CONV_2D", inputs, rank, options)


def _made(t: Translation, node: ir.Node, kind: str, inputs: list[int], rank: int, options: dict[str, Any]) -> None:
    """The operator, and behind one over a line the axis that it has more taken out."""
    value, order = node.outputs[0], last(rank)
    if rank != _LINES:
        t.write(value, kind, inputs, order, **options)
        return
    batch, channels, length = t.shape(value)
    wide = t.new(value, last(_PLANES), (batch, 1, length, channels))
    t.flat.operator(kind, inputs, [wide.index], **options)
    t.place(value, t.reshaped(wide, (batch, length, channels), order, value.name or ""))


def raised(t: Translation, x: Placed) -> Placed:
    """A line (N, L, C) as a plane of one row."""
    batch, length, channels = x.shape
    return t.reshaped(x, (batch, 1, length, channels), last(_PLANES))


def _with_padding(t: Translation, x: Placed, windows: Sequence[Window]) -> tuple[Placed, bool]:
    """What is convolved, with zeros around it where SAME does not say them; whether SAME does."""
    if not any(w.begin or w.end for w in windows):
        return x, False
    if len(windows) <= 2 and is_same(windows):
        return x, True
    return padded(t, x, sides_padded(windows)), False


def _of_volumes(
    t: Translation, node: ir.Node, x: Placed, weight: NDArray[Any], windows: Sequence[Window], groups: int
) -> None:
    if t.integer:
        raise RefusedError("TensorFlow Lite convolves volumes in float")
    x, _ = _with_padding(t, x, windows)
    kernel = t.constant(_name(node, 1), _dense(weight, groups).transpose(2, 3, 4, 1, 0))
    options: dict[str, Any] = {"padding": "VALID"}
    for letter, window in zip("DHW", windows, strict=True):
        options |= {f"stride{letter}": window.step, f"dilation{letter}Factor": window.gap}
    t.write(
        node.outputs[0],
        "CONV_3D",
        [x.index, kernel.index, bias(t, node, x, None, weight.shape[0])],
        last(_VOLUMES),
        **options,
    )


def bias(t: Translation, node: ir.Node, x: Placed, weight: Grid | None, channels: int) -> int:
    """The tensor of a bias, int32 on the product of the scales, int64 beside int16; zeros where there is none.

    TensorFlow Lite's integer kernels want one.
    """
    value = node.inputs[2] if len(node.inputs) > 2 else None
    found = (np.zeros(channels, np.float32), None) if value is None else t.stored(value)
    if found is None:
        raise RefusedError("its bias is computed")
    name = (value.name if value is not None else None) or f"{node.name}_bias"
    real = found[0] if value is None else t.numbers(value)
    assert real is not None
    if not t.integer:
        return t.constant(name, np.asarray(real, np.float32).reshape(-1)).index
    assert x.grid is not None and weight is not None
    scales = np.float32(x.grid.scale[0]) * np.array(weight.scale, np.float32)
    array, grid = found
    if grid is None or not np.allclose(grid.scale, scales, rtol=_NEAR, atol=0) or any(grid.zero_point):
        limits = np.iinfo(np.int32)
        array = np.clip(np.rint(real.reshape(-1).astype(np.float64) / scales), limits.min, limits.max)
    kind = np.int32 if x.dtype is ir.DataType.INT8 else np.int64
    return t.constant(name, array.astype(kind).reshape(-1), Grid.of(scales, np.zeros(scales.shape))).index


def _name(node: ir.Node, position: int) -> str:
    value = node.inputs[position]
    return (value.name if value is not None else None) or f"{node.name}_{position}"


def transposed(t: Translation, node: ir.Node) -> None:
    """TRANSPOSE_CONV over a plane, or a line as one; a larger result than SAME allows is cut out."""
    shape = t.shape(node.inputs[0])
    rank, groups = len(shape), node.attributes.get_int("group", 1)
    if rank not in (_LINES, _PLANES):
        raise RefusedError(f"TensorFlow Lite has no transposed convolution over {rank - 2} axes")
    weight, grid = t.weight(node)
    count = rank - 2
    get = node.attributes
    weight = _spread(weight, get.get_ints("dilations", ()) or (1,) * count)
    steps, pads = get.get_ints("strides", ()) or (1,) * count, get.get_ints("pads", ()) or (0,) * 2 * count
    if get.get_string("auto_pad", "NOTSET") not in ("NOTSET", "VALID") or "output_shape" in get:
        raise RefusedError("its padding is automatic, with sizes that are not known")
    x = t.read(node.inputs[0], last(rank))
    sizes, begins = t.shape(node.outputs[0])[2:], pads[:count]
    kernel = weight.shape[2:]
    if rank == _LINES:
        x, weight = raised(t, x), weight[:, :, None]
        sizes, begins, steps, kernel = (1, *sizes), (0, *begins), (1, *steps), (1, *kernel)
    kept = _dense(weight, groups).transpose(1, 2, 3, 0)
    grid = Grid(grid.scale, grid.zero_point, 0) if grid is not None else None
    wholes = [(size - 1) * step + side for size, step, side in zip(x.shape[1:3], steps, kernel, strict=True)]
    same = all(
        whole >= size and begin == (whole - size) // 2 and -(-size // step) == given
        for whole, size, begin, step, given in zip(wholes, sizes, begins, steps, x.shape[1:3], strict=True)
    )
    # VALID: all that is computed, as much beyond it as the result reaches, then the result out of that
    made = list(sizes) if same else [max(w, b + s) for w, b, s in zip(wholes, begins, sizes, strict=True)]
    channels = kept.shape[0]
    inputs = [
        t.list_of([x.shape[0], *made, channels]),
        t.constant(_name(node, 1), kept, grid).index,
        x.index,
        *([bias(t, node, x, grid, channels)] if len(node.inputs) > 2 and node.inputs[2] is not None else []),
    ]
    options = {"padding": "SAME" if same else "VALID", "strideH": steps[0], "strideW": steps[1]}
    value, order = node.outputs[0], last(_PLANES)
    full = t.new(value, order, (x.shape[0], *made, channels))
    t.flat.operator("TRANSPOSE_CONV", inputs, [full.index], **options)
    cut = _cut(t, full, begins, sizes)
    t.place(value, cut if rank == _PLANES else t.reshaped(cut, (x.shape[0], sizes[1], channels), last(rank)))


def _cut(t: Translation, full: Placed, begins: Sequence[int], sizes: Sequence[int]) -> Placed:
    """The rows and columns of a plane that are the result."""
    shape = (full.shape[0], *sizes, full.shape[3])
    if shape == full.shape:
        return full
    ends = [full.shape[0], *(b + s for b, s in zip(begins, sizes, strict=True)), full.shape[3]]
    index = t.flat.tensor("cut", shape, full.dtype, full.grid)
    lists = [t.list_of(numbers) for numbers in ([0, *begins, 0], ends, [1] * 4)]
    t.flat.operator("STRIDED_SLICE", [full.index, *lists], [index])
    return Placed(index, shape, full.order, full.dtype, full.grid)


def _dense(weight: NDArray[Any], groups: int) -> NDArray[Any]:
    """A weight (C, M / groups, ...), of a convolution or a transposed one in groups, as one of (C, M, ...)."""
    if groups == 1:
        return weight
    read, made = weight.shape[0] // groups, weight.shape[1]
    dense = np.zeros((weight.shape[0], made * groups, *weight.shape[2:]), weight.dtype)
    for group in range(groups):
        rows = slice(group * read, (group + 1) * read)
        dense[rows, group * made : (group + 1) * made] = weight[rows]
    return dense


def _spread(weight: NDArray[Any], gaps: Sequence[int]) -> NDArray[Any]:
    """A weight with zeros where its gaps are."""
    if all(gap == 1 for gap in gaps):
        return weight
    sides = [(side - 1) * gap + 1 for side, gap in zip(weight.shape[2:], gaps, strict=True)]
    wide = np.zeros((*weight.shape[:2], *sides), weight.dtype)
    places = (slice(None), slice(None), *(slice(None, None, gap) for gap in gaps))
    wide[places] = weight
    return wide


OPERATORS = {"Conv": convolution, "ConvTranspose": transposed}
