"""Tensors in between, as what reads them computes with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

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


def test_a_folded_normalization_is_blamed_on_the_layer_that_it_is_folded_into() -> None:
    """Its Conv writes the tensor in the quantized model, and its Conv is what --exclude can name."""
    positive = np.abs(normal(8, seed=2)) + 0.5
    model = build(
        "(float[4, 3, 8, 8] x) => (float[4, 4, 8, 8] y) {"
        " [conv] a = Conv (x, w)\n [norm] n = BatchNormalization (a, s, b, m, v)\n r = Sigmoid (n)\n y = Conv (r, u) }",
        w=normal(8, 3, 1, 1),
        u=normal(4, 8, 1, 1, seed=1),
        s=positive,
        b=positive,
        m=positive,
        v=positive,
    )
    result = onnxq.quantize(model, images(4, 3, 8, 8), options=onnxq.Options(placement="all", weight_bits=4))
    found = {tensor.tensor: tensor for tensor in onnxq.compare(model, result, images(4, 3, 8, 8)).tensors}
    assert (found["n"].node, found["n"].op) == ("conv", "Conv")
    assert found["n"].drop > 3
