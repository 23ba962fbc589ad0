"""Group 14: outputs that are read inside the model too."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto

from onnxq import Options
from tests.cases import g14
from tests.contract import quantize_checked


@pytest.mark.parametrize("name", g14.BODIES)
@pytest.mark.parametrize(
    "options",
    [
        Options(placement="all"),
        Options(),
        Options(placement="compute"),
        Options(placement="all", symmetric=True),
        Options(placement="all", format="fake-quantize"),
        Options(placement="all", act_bits=6),
    ],
    ids=["all", "auto", "compute", "symmetric", "fake", "6 bits"],
)
def test_output_also_consumed(name: str, options: Options) -> None:
    model, feeds = g14.output_also_consumed(name)
    least = None if options.placement == "auto" else 15
    result = quantize_checked(model, feeds, options, least=least)
    assert [o.name for o in result.proto.graph.output] == ["y", "z"]
    assert all(o.type.tensor_type.elem_type == TensorProto.FLOAT for o in result.proto.graph.output)


def test_every_tensor_is_an_output() -> None:
    result = quantize_checked(*g14.every_tensor_is_an_output())
    assert [o.name for o in result.proto.graph.output] == list("abcdef")


def test_output_consumed_by_a_branch() -> None:
    quantize_checked(*g14.output_consumed_by_a_branch())


def test_output_behind_a_cast() -> None:
    """A Cast that feeds an output keeps its type."""
    result = quantize_checked(*g14.output_behind_a_cast())
    types = [o.type.tensor_type.elem_type for o in result.proto.graph.output]
    assert types == [onnx.TensorProto.FLOAT16, onnx.TensorProto.INT32]
