"""What was asked of weights and the target has not, said and not passed over."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import onnxq
from onnxq import Options
from onnxq.options import Override
from tests.models import build, images, normal

FEW = Override(per_channel=True)


def products() -> onnx.ModelProto:
    """A product by one matrix, and one by a matrix for each batch."""
    return build(
        "(float[2, 6, 16] x) => (float[2, 6, 8] y) { [one] h = MatMul (x, w)\n [many] y = MatMul (h, v) }",
        w=normal(16, 12, scale=0.2) * np.geomspace(0.1, 3, 12, dtype=np.float32),
        v=normal(2, 12, 8, scale=0.2),
    )


def said(options: Options, backend: str = "qnn") -> list[str]:
    result = onnxq.quantize(products(), images(2, 6, 16), backend=backend, options=options)
    assert result.verification is not None
    return [text for text in result.verification.warnings if text.startswith("the weights of")]


@pytest.mark.parametrize("options", [Options(per_channel=True), Options(override=(("MatMul", FEW),))])
def test_weights_that_have_one_scale_all_the_same(options: Options) -> None:
    assert said(options) == ["the weights of 1 MatMul have one scale per tensor: qnn cannot have one per channel"]


def test_a_width_that_an_operator_has_not() -> None:
    assert said(Options(weight_bits=4)) == ["the weights of 2 MatMul have 8 bits: qnn cannot have 4 for them"]
    assert said(Options(override=(("one", Override(weight_bits=4)),))) == [
        "the weights of 1 MatMul have 8 bits: qnn cannot have 4 for them"
    ]


@pytest.mark.parametrize(
    "options", [Options(), Options(per_channel=False), Options(override=(("one", FEW),)), Options(weight_bits=8)]
)
def test_nothing_where_all_is_as_asked(options: Options) -> None:
    assert said(options) == []


def test_widths_without_zero_points() -> None:
    few = Options(weight_bits=4, weight_symmetric=False, placement="all", override=(("one", Override(weight_bits=8)),))
    assert said(few, "onnxruntime") == [
        "the weights of 1 MatMul have no zero points: onnxruntime has none for them in 8 bits"
    ]
