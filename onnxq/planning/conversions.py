"""What it costs to bring a tensor into integers, and out of them, by a target's table."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.backend import Backend

__all__ = ["entering", "leaving", "reordering"]


def entering(backend: Backend, value: ir.Value, size: float) -> float:
    """The cost of bringing a tensor of so many elements into integers."""
    return (backend.quantize_cost + backend.spill(value, size)) * size + backend.node_cost


def leaving(backend: Backend, value: ir.Value, size: float) -> float:
    """The cost of bringing it out of them, to one reader."""
    return (backend.dequantize_cost + backend.spill(value, size)) * size + backend.node_cost


def reordering(backend: Backend, value: ir.Value, size: float) -> float:
    """The cost of leaving the layout of float convolutions, on top of that of entering."""
    return (backend.reorder_cost + backend.spill(value, size)) * size if backend.reorder_cost else 0.0
