"""Formats that several targets share: the rendering itself, written as one ONNX file."""

from __future__ import annotations

from pathlib import Path

from onnxq.backend import Format
from onnxq.graph.files.save import save
from onnxq.graph.shapes import forget_shapes
from onnxq.quantized import Quantized

__all__ = ["FAKE_QUANTIZE", "QDQ", "write_rendered"]


def write_rendered(quantized: Quantized, path: Path) -> list[Path]:
    """Write what the format renders.

    Args:
        quantized: left unchanged.
        path: the ``.onnx`` file.

    Raises:
        OutputError: it cannot be written; nothing half-written is left.
    """
    model = quantized.rendered()
    forget_shapes(model)
    return save(model, path)


QDQ = Format(Quantized.qdq, write_rendered, integers=True)
"""QuantizeLinear and DequantizeLinear around every site."""

FAKE_QUANTIZE = Format(Quantized.fake_quantize, write_rendered)
"""An ``onnxq::FakeQuantize`` function at every site, all tensors float: any width, in any onnxruntime."""
