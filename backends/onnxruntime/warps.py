"""Warps in the one form for which onnxruntime 1.32 has a fast kernel: bilinear, zeros around, corners not aligned."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.graph.passes.chain import Chain

__all__ = ["grid_sample"]

_CHANNELS = 4
"""From which on moving a grid of unknown width pays."""


def grid_sample(chain: Chain) -> ir.Value | None:
    """A bilinear one of pictures of known size with the edges around, or with corners aligned: 13 → 2.

    Places from corner to corner are (size - 1) / size times as far apart as those from edge to edge, and what lies
    beyond the middle of the outermost element is there.
    """
    node, grid, dims = chain.node, chain.input(1), list(chain.x.shape or ())
    get = node.attributes
    padding, aligned = get.get_string("padding_mode", "zeros"), get.get_int("align_corners", 0)
    bilinear = get.get_string("mode", "linear") in ("linear", "bilinear")
    if not bilinear or padding not in ("zeros", "border") or not (aligned or padding == "border"):
        return None
    sizes = [dim for dim in dims[2:] if isinstance(dim, int)]
    if grid is None or grid.dtype is not ir.DataType.FLOAT or len(dims) != 4 or len(sizes) != 2 or min(sizes) < 1:
        return None
    nearer = np.array([(size - 1) / size for size in reversed(sizes)], np.float32)
    line = grid.shape[2] if grid.shape is not None and len(grid.shape) == 4 else None
    if isinstance(line, int):  # two numbers by themselves are repeated in 4 ns for each of the grid
        nearer = np.tile(nearer, (line, 1))
    elif not isinstance(dims[1], int) or dims[1] < _CHANNELS:
        return None
    if aligned:
        grid = chain.put("Mul", grid, chain.constant("nearer", nearer))
    if padding == "border":
        grid = chain.put("Min", grid, chain.constant("last", nearer))
        grid = chain.put("Max", grid, chain.constant("first", -nearer))
    made = chain.put("GridSample", chain.x, grid)
    kept = {name: value for name, value in get.items() if name == "mode"}
    chain.made[-1].attributes.update(kept)
    return made
