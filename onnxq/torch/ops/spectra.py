"""Fourier transforms and warps, as ONNX defines them."""

from __future__ import annotations

import onnx_ir as ir
import torch
from torch.nn import functional

from onnxq.graph.dft import AXIS_AS_INPUT
from onnxq.torch.attributes import Inputs, at
from onnxq.torch.ops.math import Op

__all__ = ["OPS", "unsupported"]

Tensor = torch.Tensor

_MODES = {
    "bilinear": "bilinear",
    "linear": "bilinear",
    "nearest": "nearest",
    "bicubic": "bicubic",
    "cubic": "bicubic",
}
"""Of a GridSample: as ONNX names them, and as torch does."""


def unsupported(node: ir.Node) -> str | None:
    """What of a node's attributes cannot be run here; None where all can."""
    get = node.attributes.get_int
    if node.op_type == "DFT" and get("inverse", 0) == 1 and get("onesided", 0) == 1:
        return "onesided with inverse"
    return None


def _dft(node: ir.Node, inputs: Inputs, opset: int) -> tuple[Tensor]:
    """Of (..., 1) real or (..., 2) complex numbers along an axis, (..., 2)."""
    x, length, get = inputs[0], at(inputs, 1), node.attributes.get_int
    assert x is not None
    given = at(inputs, 2)
    axis = get("axis", 1) if opset < AXIS_AS_INPUT else int(given) if given is not None else -2
    axis, size = axis % x.ndim, None if length is None else int(length)
    if get("onesided", 0) == 1:
        made = torch.fft.rfft(x[..., 0], n=size, dim=axis)
    else:
        numbers = torch.view_as_complex(x.contiguous()) if x.shape[-1] == 2 else x[..., 0]
        transform = torch.fft.ifft if get("inverse", 0) == 1 else torch.fft.fft
        made = transform(numbers, n=size, dim=axis)
    return (torch.view_as_real(made.contiguous()),)


def _stft(node: ir.Node, inputs: Inputs, opset: int) -> tuple[Tensor]:
    """Of a signal (B, L), (B, L, 1) or (B, L, 2), (B, frames, frequencies, 2)."""
    x, step, window, length = inputs[0], at(inputs, 1), at(inputs, 2), at(inputs, 3)
    assert x is not None and step is not None
    size = int(length) if length is not None else len(window) if window is not None else x.shape[1]
    whole = x.ndim == 3 and x.shape[2] == 2
    signal = torch.view_as_complex(x.contiguous()) if whole else x.reshape(x.shape[:2])
    frames = signal.unfold(1, size, int(step))
    if window is not None:
        frames = frames * window
    half = node.attributes.get_int("onesided", 1) == 1
    return (torch.view_as_real((torch.fft.rfft if half else torch.fft.fft)(frames).contiguous()),)


def _grid_sample(node: ir.Node, inputs: Inputs, opset: int) -> tuple[Tensor]:
    x, grid = inputs[:2]
    assert x is not None and grid is not None
    get = node.attributes.get_string
    mode, padding = _MODES[get("mode", "linear")], get("padding_mode", "zeros")
    aligned = node.attributes.get_int("align_corners", 0) == 1
    return (functional.grid_sample(x, grid.to(x.dtype), mode, padding, aligned),)


OPS: dict[str, Op] = {"DFT": _dft, "GridSample": _grid_sample, "STFT": _stft}
"""Operator → function of the node, its inputs and the version of the operator set."""
