"""Tensors in between, as what reads them computes with them."""

from __future__ import annotations

from pathlib import Path

import onnxq
from tests.models import build, images, normal


def test_a_quantized_reference_is_read_behind_its_quantizers(tmp_path: Path) -> None:
    """A quantizer that saturates as a Relu does has the Relu on the side; for another target it is written out."""
    model = build(
        "(float[1, 3, 8, 8] x) => (float[1, 4, 8, 8] y) { a = Conv (x, w)\n r = Relu (a)\n y = Conv (r, v) }",
        w=normal(8, 3, 1, 1),
        v=normal(4, 8, 1, 1, seed=1),
    )
    data, first = images(1, 3, 8, 8), tmp_path / "first.onnx"
    onnxq.quantize(model, data, backend="onnxruntime", output=first, options=onnxq.Options(placement="all"))
    second = onnxq.deploy(first, backend="snpe")
    assert "Relu" in {node.op_type for node in second.model.graph}
    compared = onnxq.compare(first, second, data)
    inner = {tensor.tensor: tensor.errors.sqnr for tensor in compared.tensors}
    assert "r" in inner and min(inner.values()) > 100
