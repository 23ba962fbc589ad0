"""Products of what a net computes of its input with that input, as PointNet turns its points."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxq
from onnxq import Options
from onnxq.runtimes.child import missing
from onnxq.runtimes.rknn import RUNTIME
from tests.models import build, feeds_for, normal

WHY = missing(RUNTIME)


def turned(points: str = "x") -> onnx.ModelProto:
    """Points turned by a matrix that is computed of them: the input, or what a Relu makes of it."""
    return build(
        f"""(float[1, 3, 64] x) => (float[1, 4, 64] y) {{
            n = Relu (x)
            [first] c = Conv ({points}, k, b)
            g = ReduceMax <keepdims = 0, axes = [2]> (c)
            [gemm] l = Gemm (g, w)
            [view] v = Reshape (l, s)
            [product] m = MatMul (v, {points})
            [last] y = Conv (m, k2, b2)
        }}""",
        k=normal(8, 3, 1),
        b=normal(8),
        w=normal(8, 9),
        s=np.array([1, 3, 3]),
        k2=normal(4, 3, 1),
        b2=normal(4),
    )


def test_what_makes_the_other_operand_stays_float() -> None:
    made = onnxq.quantize(turned(), feeds_for(turned()), backend="rknn")
    told = {kept.node: kept.reason for kept in made.plan.kept_float if "with an input" in kept.reason}
    assert told.keys() == {"gemm", "view"}
    assert {node for node, op in made.plan.quantized.items() if op == "Conv"} == {"first", "last"}


def test_what_is_no_input_is_one_tensor_for_all_that_read_it() -> None:
    made = onnxq.quantize(turned("n"), feeds_for(turned()), backend="rknn")
    assert made.plan.quantized.keys() >= {"gemm", "view", "first", "last"}


@pytest.mark.runtime
@pytest.mark.skipif(WHY is not None, reason=f"no RKNN-Toolkit2: {WHY}")
@pytest.mark.parametrize("exclude", [(), ("view",), ("gemm",)])
def test_the_builder_takes_it(exclude: tuple[str, ...], tmp_path: Path) -> None:
    """It crashed on all three."""
    feeds, options = feeds_for(turned()), Options(exclude=exclude)
    made = onnxq.quantize(turned(), feeds, backend="rknn", output=tmp_path / "m.onnx", options=options)
    agreement = onnxq.verify(made.files[0], feeds[:1], backend="rknn")
    assert not agreement.faults()
